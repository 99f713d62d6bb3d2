"""Run the command line as ``python -m iwbayes``, for example when the script is not on the path."""

from iwbayes.cli import main

if __name__ == "__main__":
    main()
