"""Video profiles: named settings of an encoder, and the options that change them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Real
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from relive._arguments import as_int, check_choice
from relive.errors import InvalidError, InvalidTypeError, UnknownNameError

Matrix: TypeAlias = Literal["bt601", "bt709", "rgb"]
"""The color matrix from RGB to the encoded format; `rgb` keeps RGB."""

FPS: Final = 30
MAX_GOP: Final = 100_000
MIN_FPS: Final = 0.001
MAX_FPS: Final = 1_000_000
MAX_THREADS: Final = 256
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Encoding:
    """The settings that an encoder is opened with: a spec with all defaults applied."""

    encoder: str
    gop: int
    pix_fmt: str
    fps: Fraction
    threads: int
    matrix: Matrix
    full_range: bool
    options: Mapping[str, str]
    profile: str

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> "Encoding":
        """Return the settings of the encoder that has this header."""
        return cls(
            encoder=header["encoder"],
            gop=header["gop"],
            pix_fmt=header["pix_fmt"],
            fps=Fraction(*header["fps"]),
            threads=header.get("threads", 1),
            matrix=header["colorspace"],
            full_range=header["color_range"] == "full",
            options=header["options"],
            profile=header["profile"],
        )


class Profile(NamedTuple):
    """The defaults of one profile, and what it is for."""

    about: str
    encoder: str
    gop: int
    pix_fmt: str
    quality: float | None
    preset: str | None
    options: Mapping[str, str]


_X264: Final = (
    "annexb=0:"  # packets as MP4 stores them
    "scenecut=0:"  # key frames only at the GOP
    "psy=0:aq-mode=0:"  # minimize the error, not its visibility
    "qcomp=1:"  # one quantizer throughout: moving parts are not blurred
    "chroma-qp-offset=-6:"  # frames are read as RGB, and color is cheap
    "subme=3:partitions=i4x4,i8x8,p8x8"  # a quarter fewer bytes for a millisecond
)
_SVTAV1: Final = (
    "pred-struct=1:lookahead=0:rtc=1:"  # no frame waits for a later one
    "scd=0:enable-tf=0:"  # key frames only at the GOP, no temporal filter
    "hierarchical-levels=2:"  # no other frame depends on every second one
    "enable-dlf=0:"  # saves a tenth of the decoding time
    # More bits for frames that others depend on: a twentieth fewer bytes in total.
    "use-fixed-qindex-offsets=1:"
    "key-frame-qindex-offset=-38:key-frame-chroma-qindex-offset=-38:"
    "qindex-offsets=[2,2,12]:chroma-qindex-offsets=[2,2,12]"
)

PROFILES: Final[Mapping[str, Profile]] = {
    "record": Profile(
        about="H.264 for any player, with fast random access",
        encoder="libx264",
        gop=10,
        pix_fmt="yuv420p",
        quality=28,
        preset="superfast",
        options={
            # fastdecode: no CABAC and no deblocking, which take half of the decoding time.
            # zerolatency: no frame waits for a later one.
            "tune": "fastdecode,zerolatency",
            "x264-params": _X264,
        },
    ),
    "compact": Profile(
        about="AV1 with random access, little larger than AV1 without it",
        encoder="libsvtav1",
        gop=10,
        pix_fmt="yuv420p",
        quality=34,
        preset="8",
        options={"svtav1-params": _SVTAV1},
    ),
    "fast": Profile(
        about="JPEG: every frame is independent, the fastest to write and to read",
        encoder="mjpeg",
        gop=1,
        pix_fmt="yuvj420p",
        quality=4,
        preset=None,
        options={"huffman": "default"},  # optimal tables save a tenth, but need a second pass
    ),
    "lossless": Profile(
        about="FFV1 in RGB, bit for bit the same frames: for simulators and labels",
        encoder="ffv1",
        gop=1,
        pix_fmt="bgr0",
        quality=None,
        preset=None,
        # Golomb codes are decoded twice as fast as range codes. No checksums of slices: FFmpeg
        # conceals the errors that they detect, and the index has a checksum of each frame.
        options={"level": "3", "coder": "0", "context": "0", "slices": "4", "slicecrc": "0"},
    ),
}
"""The profiles, by name."""

# Options with which other encoders return a packet for each frame at once, and key frames only at
# the GOP. The first entry whose name is part of the encoder's name applies.
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
# The options that `quality` sets, by the same names.
_QUALITY: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("libx26", ("crf",)),
    ("libsvtav1", ("crf",)),
    ("libvpx", ("crf",)),
    ("nvenc", ("cq",)),
    ("qsv", ("global_quality",)),
    ("vaapi", ("global_quality",)),
)
_FIXED_QUANTISER: Final = ("qmin", "qmax")
# The best and the worst quality, by the same names; None for lossless encoders.
_QUALITIES: Final[tuple[tuple[str, tuple[int, int] | None], ...]] = (
    ("libx26", (0, 51)),
    ("libsvtav1", (0, 63)),
    ("libaom", (0, 63)),
    ("libvpx", (0, 63)),
    ("mjpeg", (1, 31)),
    ("ffv1", None),
)
_ANY_QUALITY: Final = (0, 1 << 16)
# Options that contain options: those of the user are appended to those of the profile.
_NESTED: Final = ("x264-params", "x265-params", "svtav1-params")
# Options, also inside other options, with which a recording could not be read, by the reason.
_REFUSED: Final[Mapping[str, str]] = {
    "intra-refresh": "it replaces the key frames at which decoding starts",
    "single-slice-intra-refresh": "it replaces the key frames at which decoding starts",
    "irefresh-type": "it replaces the key frames at which decoding starts",
    "frame-dup": "it drops frames",
    "skip_threshold": "it drops frames",
    "drop-threshold": "it drops frames",
    "resize-mode": "it changes the size of frames",
    "avif": "it encodes only one frame",
}
_HARMLESS: Final[Mapping[str, frozenset[str]]] = {"irefresh-type": frozenset({"2"})}
"""Values of such options that do no harm, besides those that disable them."""
_DISABLED: Final = frozenset({"0", "false", "no", "off"})
_RGB: Final = re.compile(r"^(rgb|bgr|gbr|0rgb|0bgr|argb|abgr|x2rgb|x2bgr|pal8)")
_USUAL: Final = {"mjpeg": "yuvj420p", "ffv1": "bgr0", "libx264rgb": "bgr0", "png": "rgb24"}


@dataclass(frozen=True, slots=True)
class VideoSpec:
    """How frames are encoded: a named profile, and changes to it.

    Args:
        profile: `"record"`, `"compact"`, `"fast"` or `"lossless"`.
        codec: The name of an FFmpeg encoder, such as `libx265` or `h264_nvenc`. With another
            encoder than the profile's, only the GOP of the profile applies.
        gop: The number of frames from one key frame to the next.
        pix_fmt: The pixel format, by its FFmpeg name.
        fps: The frame rate that the rate control of the encoder plans for.
        quality: On the encoder's own scale (CRF, or `q` of JPEG); lower is better.
        preset: The preset of the encoder.
        bframes: The number of B-frames, which save bytes but delay packets.
        threads: The threads of the encoder, per camera.
        full_range: Whether values use the full range.
        matrix: The color matrix.
        options: Further options of the encoder; an unknown one is an `EncoderError` when the
            encoder is opened, and one with which a recording could not be read an
            `InvalidError`.

    Example:
        >>> from relive.episodes import VideoSpec
        >>> VideoSpec("compact", gop=5).encoding().encoder
        'libsvtav1'
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
        """Check the values."""
        if self.profile not in PROFILES:
            raise UnknownNameError(
                f"unknown video profile {self.profile!r}", hint=f"use one of {', '.join(PROFILES)}"
            )
        self._check_numbers()
        if self.matrix is not None:
            check_choice("matrix", self.matrix, ("bt601", "bt709", "rgb"))
        if not isinstance(self.options, Mapping):
            raise InvalidTypeError(
                f"`options` must be a dict from option names to values, got {self.options!r}"
            )
        plain = {str(name): str(value) for name, value in self.options.items()}
        object.__setattr__(self, "options", plain)
        self._check_options()

    def _check_options(self) -> None:
        """Refuse options with which a recording could not be read."""
        encoder = self.codec or PROFILES[self.profile].encoder
        for name, value in _single_options(self.options):
            reason = _REFUSED.get(name)
            if name == "annexb" and "libx265" in encoder:
                reason = "MP4 files store packets in another form"
            elif value in _DISABLED or value in _HARMLESS.get(name, ()):
                continue
            if reason is not None:
                option = f"{name}={value}" if value else name
                raise InvalidError(
                    f"the option `{option}` of `{encoder}` would make a recording unreadable: "
                    f"{reason}",
                    hint="remove it from `options`",
                )

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("gop", 1, MAX_GOP),
            ("threads", 1, MAX_THREADS),
            ("bframes", 0, 16),
        ):
            if getattr(self, name) is not None:
                as_int(name, getattr(self, name), at_least=low, at_most=high)
        for name in ("fps", "quality"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Real) or isinstance(value, bool)):
                raise InvalidTypeError(f"`{name}` must be a number, got {value!r}")
        if self.fps is not None and not MIN_FPS <= self.fps <= MAX_FPS:
            raise InvalidError(f"`fps` must be from {MIN_FPS} to {MAX_FPS}, got {self.fps}")
        if self.quality is not None:
            self._check_quality(self.codec or PROFILES[self.profile].encoder, self.quality)

    def _check_quality(self, encoder: str, quality: float) -> None:
        scale = _first(_QUALITIES, encoder, _ANY_QUALITY)
        if scale is None:
            raise InvalidError(
                f"`quality` cannot be used with the encoder `{encoder}`, which is lossless"
            )
        if not scale[0] <= quality <= scale[1]:
            low, high = scale
            raise InvalidError(
                f"`quality` of `{encoder}` must be from {low} to {high}, got {quality}"
            )

    def encoding(self) -> Encoding:
        """Return the settings that the encoder is opened with."""
        profile = PROFILES[self.profile]
        same = self.codec is None or self.codec == profile.encoder
        encoder = profile.encoder if self.codec is None else self.codec
        pix_fmt = self.pix_fmt or (profile.pix_fmt if same else _USUAL.get(encoder, "yuv420p"))
        rgb = bool(_RGB.match(pix_fmt))
        if self.matrix is not None and (self.matrix == "rgb") != rgb:
            raise InvalidError(
                f"matrix={self.matrix!r} cannot be used with the pixel format `{pix_fmt}`"
            )
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


def _single_options(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Iterate over options, and over those inside other options, as in `x264-params`."""
    for name, value in options.items():
        yield name, value
        if name.endswith(("-params", "opts")):
            for part in value.split(":"):
                inner, _, setting = part.partition("=")
                yield inner.strip(), setting.strip()


def _first(table: tuple[tuple[str, T], ...], encoder: str, otherwise: T) -> T:
    return next((value for part, value in table if part in encoder), otherwise)
