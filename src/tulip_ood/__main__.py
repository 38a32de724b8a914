"""`python -m tulip_ood` is the command `tulip`."""

from tulip_ood.cli import main

if __name__ == "__main__":
    main()
