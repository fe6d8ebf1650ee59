"""Texts that would harm a page that does not escape them."""

from __future__ import annotations

MARKER = "harmed"
"""The name that a script of these texts sets in the page's window."""
_SCRIPT = f"window.{MARKER}=1;alert(1);fetch('//evil.invalid/x')"
HOSTILE_TEXTS = (
    f"<script>{_SCRIPT}</script>",
    f"</style></title></pre></textarea></svg><script>{_SCRIPT}</script>",
    f'"><img src=\'//evil.invalid/i.png\' onerror="{_SCRIPT}">',
    f"' onfocus='{_SCRIPT}' autofocus x='",
    f"`onmouseover={_SCRIPT}//",
    f"[click](javascript:{_SCRIPT}) ![i](//evil.invalid/m.png) <javascript:{_SCRIPT}>",
    "<link rel=stylesheet href=//evil.invalid/s.css><meta http-equiv=refresh content='0;url=//evil.invalid'>",
    f'<svg/onload={_SCRIPT}><iframe srcdoc="<script>parent.{MARKER}=1</script>"></iframe><base href=//evil.invalid/>',
    f"<!--<script>--><details open ontoggle={_SCRIPT}><input autofocus onfocus={_SCRIPT}>",
    "<form action=//evil.invalid><button autofocus>go</button></form>",
    "{{ 7*7 }} {% for x in y %} ${7*7} &lt;b&gt; &#x202E; ]]>",
    "\u202eesrever\u202c \u2066isolated \u200bzero\ufeff \U000e0041tag \u2028line",
    "\x00nul \x1b[31mred\x07 \x9bcsi \x7fdel \r\rreturn",
)
