"""Real clips of different lengths, shapes and containers, made by ffmpeg's own test sources."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg

PICTURES = ["testsrc2=size=854x480", "testsrc=size=640x360", "testsrc2=size=1280x720"]
CONTAINERS = ["mp4", "mkv", "mov"]
LONGEST_SECONDS, SHORTEST_SECONDS = 20, 6


@dataclass(frozen=True)
class Clip:
    title: str
    path: Path
    seconds: int


def make_clips(count: int, directory: Path) -> list[Clip]:
    """Make `count` clips, the shortest first, two at a time."""
    directory.mkdir(parents=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda number: _make(number, directory), range(count)))


def _make(number: int, directory: Path) -> Clip:
    seconds = min(LONGEST_SECONDS, SHORTEST_SECONDS + 2 * number)
    path = directory / f"clip{number + 1}.{CONTAINERS[number % len(CONTAINERS)]}"
    picture = f"{PICTURES[number % len(PICTURES)]}:rate=30:duration={seconds}"
    sound = f"sine=frequency={220 + 55 * number}:duration={seconds}"
    # Every fourth has no sound.
    audio = [] if number % 4 == 3 else ["-f", "lavfi", "-i", sound]
    command = [
        *(imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-hide_banner", "-loglevel", "error"),
        *("-f", "lavfi", "-i", picture, *audio),
        *("-c:v", "libx264", "-preset", "ultrafast", "-crf", "28", "-threads", "1"),
        *("-pix_fmt", "yuv420p", "-c:a", "aac", str(path)),
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return Clip(f"clip {number + 1}", path, seconds)
