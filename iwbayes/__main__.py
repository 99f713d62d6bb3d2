"""``python -m iwbayes``: the command line, where the script is not on the path."""

from iwbayes.cli import main

if __name__ == "__main__":
    main()
