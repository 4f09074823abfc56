"""`python -m app` is the `starling` command."""

from app.commands.cli import main

if __name__ == "__main__":
    main()
