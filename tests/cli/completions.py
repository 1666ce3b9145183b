"""The completion scripts in the shells, typed at a terminal."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

LIMIT_S = 20
QUIET_S = 1.0  # a shell that prints nothing for so long has completed

SETUP = {
    "bash": ("bash --norc --noprofile -i", "PS1='> '; bind 'set enable-bracketed-paste off'; source <(gpulet completion bash)"),
    "zsh": ("zsh -f -i", "PS1='> '; unsetopt zle_bracketed_paste; autoload -U compinit && compinit -u -D; "
                         "source <(gpulet completion zsh)"),
    "fish": ("fish --no-config -i", "function fish_prompt; echo -n '> '; end; gpulet completion fish | source"),
}
# What is typed, and what the shell makes of it.
TYPED = (
    ("gpulet lis", "gpulet list"),
    ("gpulet mig ex", "gpulet mig export"),
    ("gpulet list --no-h", "gpulet list --no-headers"),
    ("gpulet list -o js", "gpulet list -o json"),
    ("gpulet list --output=ya", "gpulet list --output=yaml"),
    ("gpulet config check conf-", "gpulet config check conf-file.yaml"),
    ("gpulet help mig pl", "gpulet help mig plan"),
    ("gpulet completion zs", "gpulet completion zsh"),
)


def plain(text):
    """Without escape sequences; a carriage return begins a line."""
    text = re.sub(r"\x1b\[[0-9;?>=]*[a-zA-Z]|\x1b[()=>].?|\x1b\][^\x07\x1b]*(\x07|\x1b\\)", "", text.decode(errors="replace"))
    return text.replace("\r", "\n")


class Terminal:
    def __init__(self, node, shell):
        command, setup = SETUP[shell]
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        home = node.directory / f"home-{shell}"
        home.mkdir(exist_ok=True)
        (home / "conf-file.yaml").touch()
        self.process = subprocess.Popen(["setsid", "--ctty", *command.split()], stdin=slave, stdout=slave, stderr=slave, cwd=home,
                                        env={**node.environment, "HOME": str(home), "TERM": "dumb" if shell != "fish" else "xterm"})
        os.close(slave)
        self.read()
        self.type(setup + "; echo '@@' ready\r")
        self.read(r"^@@ ready")

    def type(self, text):
        os.write(self.master, text.encode())

    def read(self, until=None):
        """Returns what is printed until it matches, or else until nothing is for QUIET_S."""
        text, end = b"", time.monotonic() + LIMIT_S
        while time.monotonic() < end and not (until and re.search(until, plain(text), re.MULTILINE)):
            if not select.select([self.master], [], [], LIMIT_S if until else QUIET_S)[0]:
                break
            try:
                chunk = os.read(self.master, 1 << 16)
            except OSError:
                break
            if not chunk:
                break
            if b"\x1b[c" in chunk or b"\x1b[0c" in chunk:  # fish asks what the terminal is
                os.write(self.master, b"\x1b[?62;c")
            text += chunk
        return plain(text)

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.master)


def complete(node, shell):
    """Types each line and its Tab, then runs it as an argument of `echo`: the words that the shell has then."""
    terminal = Terminal(node, shell)
    try:
        wrong = []
        for typed, wanted in TYPED:
            # Behind the Tab, at the start of the line: what runs shows the words that the shell has made.
            terminal.type(typed + "\t" + "\x01echo '@@' \x05\r")
            shown = terminal.read(r"^@@ .*\n")
            found = re.findall(r"^@@ (.*?)\s*$", shown, re.MULTILINE)
            if not found or found[-1] != wanted:
                wrong.append(f"{typed!r} becomes {found[-1:] or shown[-300:]!r}, not {wanted!r}")
        return "; ".join(wrong) or None
    finally:
        terminal.close()


def check_syntax(node, shell):
    script = node.run(["gpulet", "completion", shell])
    path = node.directory / f"completion.{shell}"
    path.write_text(script.stdout)
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.stderr or None


def check_descriptions(node):
    done = subprocess.run(["fish", "--no-config", "-c", "gpulet completion fish | source; complete -C 'gpulet mig '"],
                          env=node.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = done.stdout.splitlines()
    wanted = "export\tWrite the current layout of the GPUs as a mig-parted file"
    return None if wanted in lines and len(lines) == 4 else f"{lines!r} {done.stderr}"


def checks(node):
    for shell in SETUP:
        yield f"{shell}: syntax", lambda shell=shell: check_syntax(node, shell)
        yield f"{shell}: typed", lambda shell=shell: complete(node, shell)
    yield "fish: descriptions", lambda: check_descriptions(node)
