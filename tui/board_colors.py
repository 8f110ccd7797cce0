"""Colors of a board on which the pieces of both sides contrast with every square, with 16, 256 or all colors."""

from __future__ import annotations

from functools import cache

from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.color import Color

WHITE_CONTRAST = 4.5  # white pieces, signs and numbers on their square: WCAG 2.2, 1.4.3
BLACK_CONTRAST = 3.0  # black pieces on their square: WCAG 2.2, 1.4.11
CONTRAST_MARGIN = 0.04  # contrast lost by rounding colors to 8 bits
COLOR_SYSTEMS = {"standard": ColorSystem.STANDARD, "windows": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT}
SIXTEEN_COLORS = (  # of VGA, in ANSI order: dark shades, then bright ones
    "#000000", "#aa0000", "#00aa00", "#aa5500", "#0000aa", "#aa00aa", "#00aaaa", "#aaaaaa",
    "#555555", "#ff5555", "#55ff55", "#ffff55", "#5555ff", "#ff55ff", "#55ffff", "#ffffff",
)  # fmt: skip
# With 16 colors squares are black: white pieces are white, black ones yellow, and only marked squares have a color.
BLACK, RED, BLUE = Color(0, 0, 0), Color(170, 0, 0), Color(0, 0, 170)
PIECES_OF_16 = {"white": Color(255, 255, 255), "black": Color(255, 255, 85)}


def get_color_system(name: str | None) -> ColorSystem:
    """Return the system of a Rich console by its name; a terminal without color counts as one of all colors."""
    return COLOR_SYSTEMS.get(name or "", ColorSystem.TRUECOLOR)


def compute_luminance(color: Color) -> float:
    """Return the relative luminance of a color, 0..1: WCAG 2.2, "relative luminance"."""
    red, green, blue = map(to_linear, color.rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def to_linear(value: int) -> float:
    """Return the share of light, 0..1, of an sRGB component 0..255."""
    share = value / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def to_srgb(share: float) -> int:
    """Return the sRGB component 0..255 of a share of light, 0..1."""
    return round(255 * (12.92 * share if share <= 0.0031308 else 1.055 * share ** (1 / 2.4) - 0.055))


def compute_contrast_ratio(one: Color, other: Color) -> float:
    """Return the contrast of two colors, 1..21: WCAG 2.2, "contrast ratio"."""
    low, high = sorted((compute_luminance(one), compute_luminance(other)))
    return (high + 0.05) / (low + 0.05)


@cache
def compute_luminance_range(white: Color, black: Color, margin: float = 0.0) -> tuple[float, float]:
    """Return the lowest and highest luminance of a square that gives the pieces of both sides their contrast. If none
    does, only white pieces have theirs."""
    high = (compute_luminance(white) + 0.05) / (WHITE_CONTRAST + margin) - 0.05
    low = (BLACK_CONTRAST + margin) * (compute_luminance(black) + 0.05) - 0.05
    return min(low, high), high


@cache
def choose_square_color(color: Color, tint: str, system: ColorSystem, white: Color, black: Color) -> Color:
    """Return the color of a square nearest to `color` on which pieces of these colors are readable.

    `tint` names the square's shade, if any. With 16 colors, `tint` alone decides.
    """
    if system is ColorSystem.STANDARD:
        return RED if tint == "wrong" else BLUE if tint else BLACK
    if system is ColorSystem.EIGHT_BIT:
        return min(list_readable_256(white, black), key=lambda one: compute_color_distance(one, color))
    low, high = compute_luminance_range(white, black, CONTRAST_MARGIN)
    light = compute_luminance(color)
    shares = [to_linear(value) for value in color.rgb]
    if light > high:
        shares = [share * high / light for share in shares]
    elif light < low:
        shares = [share + (1 - share) * (low - light) / (1 - light) for share in shares]
    red, green, blue = map(to_srgb, shares)
    return Color(red, green, blue)


def compute_color_distance(one: Color, other: Color) -> int:
    return sum((a - b) ** 2 for a, b in zip(one.rgb, other.rgb, strict=True))


@cache
def list_readable_256(white: Color, black: Color) -> tuple[Color, ...]:
    """Return the colors of the 256-color palette with the luminance that squares need."""
    eight_bit = ColorSystem.EIGHT_BIT
    low, high = compute_luminance_range(downgrade_color(white, eight_bit), downgrade_color(black, eight_bit))
    return tuple(one for one in list_256() if low <= compute_luminance(one) <= high)


@cache
def list_256() -> tuple[Color, ...]:
    """Return the colors of the 256-color palette that every terminal shows alike."""
    colors = (Color(*RichColor.from_ansi(number).get_truecolor()) for number in range(16, 256))
    return tuple(dict.fromkeys(downgrade_color(one, ColorSystem.EIGHT_BIT) for one in colors))


@cache
def find_nearest_256(color: Color) -> Color:
    """Return the nearest color of the 256-color palette. Rich would send one of another hue for many dark colors."""
    return min(list_256(), key=lambda one: compute_color_distance(one, color))


@cache
def downgrade_color(color: Color, system: ColorSystem) -> Color:
    """Return the color that Rich sends to a terminal of this color system instead of `color`."""
    if system is ColorSystem.TRUECOLOR:
        return color
    terminal_color = RichColor.from_rgb(*color.rgb).downgrade(system)
    return (
        Color.parse(SIXTEEN_COLORS[terminal_color.number])
        if terminal_color.number is not None and terminal_color.number < 16
        else Color(*terminal_color.get_truecolor())
    )
