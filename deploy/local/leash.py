"""Run a command that cannot outlive the process that started it.

Run by its path, as a script, with the reading end of a pipe whose writing end only the owner holds:

    leash.py FD COMMAND [ARGUMENT ...]

The command takes over this very process, so that its pid is the one the owner knows. A forked watcher stays
behind, waits for the pipe to close, which the kernel does however the owner ends, and kills what is left of
the command's process group. It works on every POSIX system, SIGKILL of the owner included.
"""

import os
import signal
import sys


def watch(fd: int, command_pid: int) -> None:
    """Block until the owner is gone, then kill the group of `command_pid`, its own group too."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.read(fd, 1):
        pass
    # The group lives as long as its watcher does, so this can never reach a stranger with a recycled id.
    os.killpg(command_pid, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Fork the watcher, become the command."""
    fd, command = int(arguments[0]), arguments[1:]
    pid = os.getpid()
    os.setsid()
    if os.fork() == 0:
        try:
            watch(fd, pid)
        finally:
            os._exit(1)
    os.close(fd)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
