"""`VideoSpec`: the settings of the profiles, and that every argument reaches the encoder."""

import pickle
from fractions import Fraction
from typing import Any

import pytest

from relive.errors import InvalidError, InvalidTypeError, UnknownNameError
from relive.store.video import PROFILES, VideoSpec


@pytest.mark.parametrize("profile", PROFILES)
def test_profile_sets_every_option(profile: str) -> None:
    encoding = VideoSpec(profile=profile).encoding()
    assert encoding.encoder == PROFILES[profile].encoder
    assert encoding.gop == (10 if profile in ("record", "compact") else 1)
    assert encoding.fps == 30
    assert encoding.threads == 1
    assert encoding.options["bf"] == "0"


def test_only_lossless_keeps_rgb() -> None:
    kept = {name: VideoSpec(profile=name).encoding().matrix == "rgb" for name in PROFILES}
    assert kept == {"record": False, "compact": False, "fast": False, "lossless": True}


def test_arguments_override_the_profile() -> None:
    spec = VideoSpec(gop=5, quality=20.5, preset="fast", bframes=2, threads=3, fps=29.97)
    encoding = spec.encoding()
    assert (encoding.gop, encoding.threads) == (5, 3)
    assert abs(encoding.fps - Fraction("29.97")) < Fraction(1, 1000)
    assert encoding.options["crf"] == "20.5"
    assert encoding.options["preset"] == "fast"
    assert encoding.options["bf"] == "2"
    assert "annexb=0" in encoding.options["x264-params"]


def test_nested_options_are_merged_and_others_replaced() -> None:
    encoding = VideoSpec(options={"x264-params": "ref=3", "tune": "film"}).encoding()
    assert encoding.options["x264-params"].endswith(":ref=3")
    assert encoding.options["tune"] == "film"


def test_bit_rate_replaces_the_quality() -> None:
    assert "crf" not in VideoSpec(options={"b": "2000000"}).encoding().options


def test_another_encoder_keeps_only_the_gop() -> None:
    encoding = VideoSpec(codec="libx265", quality=25).encoding()
    assert encoding.gop == 10
    assert encoding.options["crf"] == "25"
    assert encoding.options["tune"] == "zerolatency"
    assert "x264-params" not in encoding.options


def test_threads_reach_svt_av1() -> None:
    options = VideoSpec(profile="compact", threads=2).encoding().options
    assert options["svtav1-params"].endswith(":lp=2")


def test_spec_pickles_and_is_hashable() -> None:
    spec = VideoSpec(profile="compact", fps=60, options={"crf": "30"})
    again = pickle.loads(pickle.dumps(spec))  # noqa: S301 - our own data
    assert {again: 1}[spec] == 1


def test_slow_frame_rates_are_exact() -> None:
    assert VideoSpec(fps=0.001).encoding().fps == Fraction(1, 1000)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"profile": "best"}, UnknownNameError),
        ({"gop": 0}, InvalidError),
        ({"gop": 2.5}, InvalidTypeError),
        ({"threads": True}, InvalidTypeError),
        ({"bframes": 17}, InvalidError),
        ({"fps": 0}, InvalidError),
        ({"fps": float("nan")}, InvalidError),
        ({"fps": "30"}, InvalidTypeError),
        ({"quality": "good"}, InvalidTypeError),
        ({"quality": 52}, InvalidError),
        ({"quality": -1}, InvalidError),
        ({"quality": float("nan")}, InvalidError),
        ({"profile": "compact", "quality": 64}, InvalidError),
        ({"profile": "fast", "quality": 0}, InvalidError),
        ({"profile": "lossless", "quality": 3}, InvalidError),
        ({"profile": "lossless", "codec": "libx265", "quality": 52}, InvalidError),
        ({"matrix": "bt2020"}, InvalidError),
        ({"options": "crf=3"}, InvalidTypeError),
    ],
)
def test_invalid_settings_raise_at_once(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        VideoSpec(**options)


def test_colour_matrix_must_match_the_pixel_format() -> None:
    with pytest.raises(InvalidError, match="bgr0"):
        VideoSpec(profile="lossless", matrix="bt709").encoding()


X265 = {"codec": "libx265"}
COMPACT = {"profile": "compact"}


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ({}, {"intra-refresh": "1"}),
        ({}, {"x264-params": "ref=2:intra-refresh=1"}),
        ({}, {"x264opts": "intra-refresh"}),
        (X265, {"x265-params": "intra-refresh=1"}),
        (X265, {"x265-params": "annexb=0"}),
        (X265, {"x265-params": "frame-dup=1"}),
        (COMPACT, {"svtav1-params": "irefresh-type=1"}),
        (COMPACT, {"svtav1-params": "resize-mode=1:resize-denom=16"}),
        (COMPACT, {"svtav1-params": "avif=1"}),
        ({"codec": "libvpx-vp9"}, {"drop-threshold": 50}),
        ({"codec": "mpeg4"}, {"skip_threshold": "100"}),
        ({"codec": "h264_nvenc"}, {"intra-refresh": "true"}),
    ],
)
def test_options_with_which_nothing_could_be_read_are_refused(
    spec: dict[str, Any], options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidError, match="would make a recording unreadable") as caught:
        VideoSpec(**spec, options=options)
    assert caught.value.hint == "remove it from `options`"


def test_disabled_options_are_not_refused() -> None:
    VideoSpec(options={"intra-refresh": "0", "x264-params": "intra-refresh=0:open-gop=1"})
    VideoSpec("compact", options={"svtav1-params": "irefresh-type=2:resize-mode=0"})
