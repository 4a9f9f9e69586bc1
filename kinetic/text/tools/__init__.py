"""Tool calls in the formats that chat templates teach their models.

tools = tools_of(request["tools"])                # OpenAI's form
choice = choose(tools, request["tool_choice"])    # choice.tools, choice.forced
parser = ToolParser(dialect_of(template_source), choice.tools)
constraint = forced_calls(vocabulary, dialect, choice.tools)       # where choice.forced
events = parser.push(text) ... parser.flush("stop")
"""

from kinetic.text.tools.detect import dialect_of
from kinetic.text.tools.dialect import Call, Dialect, End, Region
from kinetic.text.tools.forced import forced_calls, offered_calls
from kinetic.text.tools.stream import ToolParser, new_call_id
from kinetic.text.tools.tool import Tool, ToolChoice, choose, tools_of

__all__ = [
    "Call",
    "Dialect",
    "End",
    "Region",
    "Tool",
    "ToolChoice",
    "ToolParser",
    "choose",
    "dialect_of",
    "forced_calls",
    "new_call_id",
    "offered_calls",
    "tools_of",
]
