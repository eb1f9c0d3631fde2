"""Named ways to encode a camera, and every knob that turns one into another."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Real
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from relive.errors import InvalidError, InvalidTypeError, UnknownNameError

__all__ = ["PROFILES", "Encoding", "Matrix", "VideoSpec"]

Matrix: TypeAlias = Literal["bt601", "bt709", "rgb"]
"""How RGB became what is coded; `rgb` is RGB itself."""

FPS: Final = 30
MAX_GOP: Final = 100_000
MIN_FPS: Final = 0.001
MAX_FPS: Final = 1_000_000
MAX_THREADS: Final = 256
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Encoding:
    """What an encoder is opened with: a spec with all its blanks filled in."""

    encoder: str
    gop: int
    pix_fmt: str
    fps: Fraction
    threads: int
    matrix: Matrix
    full_range: bool
    options: Mapping[str, str]
    profile: str


class Profile(NamedTuple):
    """One named trade-off: what it is for, and the blanks it fills in."""

    about: str
    encoder: str
    gop: int
    pix_fmt: str
    quality: float | None
    preset: str | None
    options: Mapping[str, str]


_X264: Final = (
    "annexb=0:"  # packets as MP4 stores them
    "scenecut=0:"  # key frames where they are asked for and nowhere else
    "psy=0:aq-mode=0:"  # bits where they lessen the error, not where they please
    "qcomp=1:"  # one quantiser throughout: what moves is not blurred
    "chroma-qp-offset=-6:"  # RGB is what is read, and colour is cheap
    "subme=3:partitions=i4x4,i8x8,p8x8"  # a quarter fewer bytes for a millisecond
)
_SVTAV1: Final = (
    "pred-struct=1:lookahead=0:rtc=1:"  # no frame waits for a later one
    "scd=0:enable-tf=0:"  # key frames where they are asked for, pictures as they are
    "hierarchical-levels=2:"  # every second frame is one that no other needs
    "enable-dlf=0:"  # a tenth of the time to decode
    # More bits for the frames that others are made of: a twentieth fewer in all.
    "use-fixed-qindex-offsets=1:"
    "key-frame-qindex-offset=-38:key-frame-chroma-qindex-offset=-38:"
    "qindex-offsets=[2,2,12]:chroma-qindex-offsets=[2,2,12]"
)

PROFILES: Final[Mapping[str, Profile]] = {
    "record": Profile(
        about="H.264 that any player shows and that is decoded fast from any frame on",
        encoder="libx264",
        gop=10,
        pix_fmt="yuv420p",
        quality=28,
        preset="superfast",
        options={
            # fastdecode: no CABAC and no deblocking, which are half of the time to decode.
            # zerolatency: no frame waits for a later one.
            "tune": "fastdecode,zerolatency",
            "x264-params": _X264,
        },
    ),
    "compact": Profile(
        about="AV1 in little more bytes than video that cannot be read at random",
        encoder="libsvtav1",
        gop=10,
        pix_fmt="yuv420p",
        quality=34,
        preset="8",
        options={"svtav1-params": _SVTAV1},
    ),
    "fast": Profile(
        about="JPEG: every frame stands alone, the least work to write and to read one",
        encoder="mjpeg",
        gop=1,
        pix_fmt="yuvj420p",
        quality=4,
        preset=None,
        options={"huffman": "default"},  # fitted tables save a tenth, for a second pass
    ),
    "lossless": Profile(
        about="FFV1 in RGB, bit for bit what was given: for simulators and labels",
        encoder="ffv1",
        gop=1,
        pix_fmt="bgr0",
        quality=None,
        preset=None,
        # Golomb codes are read twice as fast as range codes. No checksums of slices: FFmpeg
        # patches what they find, and the index has one of all.
        options={"level": "3", "coder": "0", "context": "0", "slices": "4", "slicecrc": "0"},
    ),
}
"""What each profile sets."""

# What another encoder needs to give a packet for each frame at once, and no key frames but
# those that are asked for. The first whose name is in the encoder's.
_PROMPT: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    ("libx264", {"tune": "zerolatency", "x264-params": "scenecut=0"}),
    (
        "libx265",
        {
            "tune": "zerolatency",
            "x265-params": "scenecut=0:open-gop=0:log-level=error",
            "forced-idr": "1",
        },
    ),
    ("libsvtav1", {"svtav1-params": "pred-struct=1:lookahead=0:scd=0"}),
    ("libvpx", {"deadline": "realtime", "lag-in-frames": "0", "cpu-used": "6", "b": "0"}),
    ("nvenc", {"delay": "0", "zerolatency": "1", "forced-idr": "1", "no-scenecut": "1"}),
)
# The options that a quality sets, by the same names.
_QUALITY: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("libx26", ("crf",)),
    ("libsvtav1", ("crf",)),
    ("libvpx", ("crf",)),
    ("nvenc", ("cq",)),
    ("qsv", ("global_quality",)),
    ("vaapi", ("global_quality",)),
)
_FIXED_QUANTISER: Final = ("qmin", "qmax")
# From the best to the worst, by the same names; None where there is nothing to choose.
_QUALITIES: Final[tuple[tuple[str, tuple[int, int] | None], ...]] = (
    ("libx26", (0, 51)),
    ("libsvtav1", (0, 63)),
    ("libaom", (0, 63)),
    ("libvpx", (0, 63)),
    ("mjpeg", (1, 31)),
    ("ffv1", None),
)
_ANY_QUALITY: Final = (0, 1 << 16)
# Options that hold options: what a user sets is added to what is there, and comes last.
_NESTED: Final = ("x264-params", "x265-params", "svtav1-params")
_RGB: Final = re.compile(r"^(rgb|bgr|gbr|0rgb|0bgr|argb|abgr|x2rgb|x2bgr|pal8)")
_USUAL: Final = {"mjpeg": "yuvj420p", "ffv1": "bgr0", "libx264rgb": "bgr0", "png": "rgb24"}


@dataclass(frozen=True, slots=True)
class VideoSpec:
    """How frames are encoded: a named profile, and what of it is to be different.

    `codec` is an encoder as FFmpeg calls it (`libx265`, `h264_nvenc`); another one than the
    profile's keeps nothing of the profile but its GOP. `quality` is the encoder's own scale
    (CRF, or `q` of JPEG; less is better), `fps` a hint to its rate control alone, `bframes`
    trades delay for bytes, `threads` is per camera. `options` go to the encoder as they are;
    those it does not know are an `EncoderError` when it is opened.
    """

    profile: str = "record"
    codec: str | None = None
    gop: int | None = None
    pix_fmt: str | None = None
    fps: float | Fraction | None = None
    quality: float | None = None
    preset: str | int | None = None
    bframes: int | None = None
    threads: int | None = None
    full_range: bool | None = None
    matrix: Matrix | None = None
    options: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse what no encoder could take."""
        if self.profile not in PROFILES:
            raise UnknownNameError(
                f"no video profile is called {self.profile!r}",
                hint=f"there are {', '.join(PROFILES)}",
            )
        self._check_numbers()
        if self.matrix not in (None, "bt601", "bt709", "rgb"):
            raise InvalidError(f"`matrix` is bt601, bt709 or rgb, not {self.matrix!r}")
        if not isinstance(self.options, Mapping):
            raise InvalidTypeError(f"`options` map names to text, unlike {self.options!r}")
        plain = {str(name): str(value) for name, value in self.options.items()}
        object.__setattr__(self, "options", plain)

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("gop", 1, MAX_GOP),
            ("threads", 1, MAX_THREADS),
            ("bframes", 0, 16),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidTypeError(f"`{name}` is a whole number, not {value!r}")
            if not low <= value <= high:
                raise InvalidError(f"`{name}` is from {low} to {high}, not {value}")
        for name in ("fps", "quality"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Real) or isinstance(value, bool)):
                raise InvalidTypeError(f"`{name}` is a number, not {value!r}")
        if self.fps is not None and not MIN_FPS <= self.fps <= MAX_FPS:
            raise InvalidError(f"`fps` is from {MIN_FPS} to {MAX_FPS}, not {self.fps}")
        if self.quality is not None:
            self._check_quality(self.codec or PROFILES[self.profile].encoder, self.quality)

    def _check_quality(self, encoder: str, quality: float) -> None:
        scale = _first(_QUALITIES, encoder, _ANY_QUALITY)
        if scale is None:
            raise InvalidError(f"`{encoder}` is lossless, and takes no `quality`")
        if not scale[0] <= quality <= scale[1]:
            low, high = scale
            raise InvalidError(f"`quality` of `{encoder}` is from {low} to {high}, not {quality}")

    def encoding(self) -> Encoding:
        """Give what the encoder is opened with."""
        profile = PROFILES[self.profile]
        same = self.codec is None or self.codec == profile.encoder
        encoder = profile.encoder if self.codec is None else self.codec
        pix_fmt = self.pix_fmt or (profile.pix_fmt if same else _USUAL.get(encoder, "yuv420p"))
        rgb = bool(_RGB.match(pix_fmt))
        if self.matrix is not None and (self.matrix == "rgb") != rgb:
            raise InvalidError(f"`{pix_fmt}` does not go with the matrix {self.matrix!r}")
        full = pix_fmt.startswith("yuvj") or rgb if self.full_range is None else self.full_range
        threads = 1 if self.threads is None else self.threads
        return Encoding(
            encoder=encoder,
            gop=self.gop if self.gop is not None else profile.gop,
            pix_fmt=pix_fmt,
            fps=Fraction(FPS if self.fps is None else self.fps).limit_denominator(1001),
            threads=threads,
            matrix=self.matrix or ("rgb" if rgb else "bt601"),
            full_range=full,
            options=self._options(profile if same else None, encoder, threads),
            profile=self.profile,
        )

    def _options(self, profile: Profile | None, encoder: str, threads: int) -> dict[str, str]:
        options = dict(profile.options if profile else _first(_PROMPT, encoder, {}))
        preset, quality = self.preset, self.quality
        if profile is not None:
            preset = profile.preset if preset is None else preset
            quality = profile.quality if quality is None and "b" not in self.options else quality
        if preset is not None:
            options["preset"] = str(preset)
        if quality is not None:
            for name in _first(_QUALITY, encoder, _FIXED_QUANTISER):
                options[name] = f"{quality:g}"
        options["bf"] = str(self.bframes or 0)
        if "libsvtav1" in encoder:
            options["svtav1-params"] += f":lp={threads}"
        for name, value in self.options.items():
            joined = name in _NESTED and name in options
            options[name] = f"{options[name]}:{value}" if joined else value
        return options


def _first(table: tuple[tuple[str, T], ...], encoder: str, otherwise: T) -> T:
    return next((value for part, value in table if part in encoder), otherwise)
