"""`python -m ascent` is the command `ascent`."""

from ascent.cli.main import run

if __name__ == "__main__":
    run()
