"""The palette as style sheet rules, for pages that switch between light, dark and print without a script."""

from __future__ import annotations

from moescope.views import palette

HEAT_LEVELS = 33
"""Colour classes ``v0`` to ``v32`` of heat maps; 16 is the middle."""


def theme_css() -> str:
    """Custom properties and classes for the palette: light, dark by preference or by choice, light in print."""
    light, dark = _variables(palette.LIGHT), _variables(palette.DARK)
    rules = [
        f":root{{color-scheme:light;{light}}}",
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}",
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}",
    ]
    for group in palette.GROUPS:
        fill = f"url(#hatch-{group.key})" if group.hatched else f"var(--p-{group.key})"
        rules.append(f"rect.p-{group.key}{{fill:{fill}}}")
        rules.append(f"i.p-{group.key}{{--c:var(--p-{group.key})}}")
    rules += [f".l{i}{{stroke:var(--l{i})}}rect.k{i}{{fill:var(--l{i})}}i.k{i}{{--c:var(--l{i})}}" for i in range(8)]
    rules += [f".v{i}{{fill:var(--v{i})}}" for i in range(HEAT_LEVELS)]
    return "\n".join(rules) + "\n"


def _variables(theme: palette.Theme) -> str:
    names = {"surface": theme.surface, "text": theme.text, "muted": theme.muted, "grid": theme.grid, "hot": theme.hot}
    names |= {f"p-{group.key}": theme.group(group) for group in palette.GROUPS}
    names |= {f"l{i}": colour for i, colour in enumerate(theme.lines)}
    for i in range(HEAT_LEVELS):
        end, share = (theme.hot, i / 16 - 1) if i >= 16 else (theme.cold, 1 - i / 16)
        names[f"v{i}"] = palette.mix(theme.middle, end, share)
    return "".join(f"--{name}:{value};" for name, value in names.items())
