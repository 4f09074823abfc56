"""`python -m app` is the `starling` command."""

from app.cli.commands import main

if __name__ == "__main__":
    main()
