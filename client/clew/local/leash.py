"""Run a command that cannot outlive the process that started it.

Run it by its path, as a script, with the reading end of a pipe whose writing end only the owner holds:

    leash.py FD COMMAND [ARGUMENT ...]

The command replaces this process, so the owner knows its pid. A forked watcher waits for the pipe to close, which the
kernel does however the owner ends, and then kills the command's process group. It works on every POSIX system, also
when the owner is killed with SIGKILL.
"""

import os
import signal
import sys


def watch(fd: int, command_pid: int) -> None:
    """Block until the owner has ended, then kill the group of `command_pid`, which is also the watcher's."""
    null_device = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null_device, stream)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.read(fd, 1):
        pass
    # The watcher is in the group, so the group's id cannot have been reused.
    os.killpg(command_pid, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Fork the watcher, then replace this process with the command."""
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
