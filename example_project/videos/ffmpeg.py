"""One video file in; an HLS playlist with its segments and a thumbnail out."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import imageio_ffmpeg

from example_project.die_with_parent import die_with_parent

PLAYLIST = "index.m3u8"
THUMBNAIL = "thumbnail.jpg"
SEGMENT_SECONDS = 2


class TranscodeError(Exception):
    """ffmpeg refused the file; the message holds its last words."""


def to_hls(source: Path, directory: Path, *, on_progress: Callable[[], object]) -> None:
    """Write `PLAYLIST`, its segments and `THUMBNAIL` into `directory`, which must exist.

    Args:
        on_progress: called about four times a second while ffmpeg works. When it raises, ffmpeg
            is ended and the exception goes on to the caller.

    Raises:
        TranscodeError: ffmpeg could not read or encode the file.
    """
    log = directory / "ffmpeg.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            die_with_parent(_command(source, directory)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for _line in process.stdout:
                on_progress()
            exit_status = process.wait()
        finally:
            process.kill()  # has no effect on one that has ended
    if exit_status != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-3:]
        raise TranscodeError(" / ".join(last) or f"ffmpeg ended with {exit_status}")
    log.unlink()


def _command(source: Path, directory: Path) -> list[str]:
    hls = [
        *("-map", "0:v:0", "-map", "0:a:0?"),
        *("-c:v", "libx264", "-preset", "medium", "-pix_fmt", "yuv420p"),
        *("-vf", "scale=-2:480"),
        # One core for each job: the pool's concurrency is what fills the machine.
        *("-threads", "1"),
        *("-force_key_frames", f"expr:gte(t,n_forced*{SEGMENT_SECONDS})"),
        *("-c:a", "aac", "-b:a", "96k"),
        *("-f", "hls", "-hls_time", str(SEGMENT_SECONDS), "-hls_playlist_type", "vod"),
        *("-hls_segment_filename", str(directory / "segment_%04d.ts")),
        str(directory / PLAYLIST),
    ]
    thumbnail = [
        *("-map", "0:v:0", "-vf", "thumbnail,scale=640:-2", "-frames:v", "1", "-update", "1"),
        str(directory / THUMBNAIL),
    ]
    return [
        imageio_ffmpeg.get_ffmpeg_exe(),
        *("-nostdin", "-hide_banner", "-loglevel", "error"),
        *("-progress", "pipe:1", "-stats_period", "0.25"),
        *("-i", str(source)),
        *hls,
        *thumbnail,
    ]
