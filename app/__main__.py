"""`python -m app` is the `starling` command."""

from starling_serve import main

if __name__ == "__main__":
    main()
