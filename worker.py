"""Runs the worker, in the checkout: python worker.py --tools my_package.tools."""

from clew_activities.worker import main

if __name__ == "__main__":
    main()
