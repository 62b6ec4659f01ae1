"""Templates with the constructs of the known families, written for this test, and conversations for them.

Of a family: its template, the tokens that are variables, the special tokens of its vocabulary, the token that ends an answer, and
whether it knows tools. `prepends`: its vocabulary sets a space before a text. `refuses`: conversations that it refuses, or whose
answers do not follow its prompt.
"""

LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}
{% set rest = messages[1:] %}
{% set system = messages[0]['content'] %}
{% else %}
{% set rest = messages %}
{% set system = false %}
{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must take turns: user, assistant, user, assistant') }}
{% endif %}
{% if loop.index0 == 0 and system != false %}
{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}
{% set content = message['content'] %}
{% endif %}
{% if message['role'] == 'user' %}
{{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}
{{- ' ' + content.strip() + ' ' + eos_token }}
{%- endif %}
{% endfor %}"""

LLAMA3 = (
    "{% set all = messages %}{% for message in all %}{% set text = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

LLAMA31 = """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The first system message stands in the head. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You may call these functions with a JSON object:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at once, please") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN25 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nAnswer with <tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" ~ (tool | tojson) }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(seeking=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.seeking and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.seeking = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query %}
            {%- if loop.last or (not loop.last and reasoning) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("after the system message, user and assistant must take turns") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("ids of calls have nine characters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("only user, assistant and tool may speak after the system") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("the roles must take turns") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("the content has no known type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""

PHI3 = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}"
    "{% else %}{{ eos_token }}{% endif %}"
)

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are small.<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SMOLLM3 = """\
{# ───── defaults ───── #}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- set mode = "/think" if enable_thinking else "/no_think" -%}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set mode = "/no_think" -%}
  {%- endif -%}
  {%- set instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{%- set today = strftime_now("%d %B %Y") -%}
{{- "<|im_start|>system\\n## Data\\n\\nToday: " -}}
{{- today ~ "\\nMode: " + mode + "\\n\\n" -}}
{%- if instructions -%}
  {{- instructions + "\\n\\n" -}}
{%- endif -%}
{%- if xml_tools or python_tools or tools -%}
  {{- "### Tools\\n\\n" -}}
  {%- set ns = namespace(text="You may call:\\n\\n<tools>\\n") -%}
  {%- for tool in (xml_tools or tools)[:] -%}
    {%- set ns.text = ns.text ~ (tool | string) ~ "\\n" -%}
  {%- endfor -%}
  {{- ns.text + "</tools>\\n\\n" -}}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}
    {{ "<|im_start|>" + message.role + "\\n" + content + "<|im_end|>\\n" }}
  {%- elif message.role == "assistant" -%}
    {{ "<|im_start|>assistant\\n" }}
    {%- generation -%}
    {%- if mode == "/think" -%}
      {{ content.lstrip("\\n") + "<|im_end|>" }}
    {%- else -%}
      {{ "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>" }}
    {%- endif -%}
    {%- endgeneration -%}
    {{ "\\n" }}
  {%- elif message.role == "tool" -%}
    {{ "<|im_start|>" + "user\\n" + content + "<|im_end|>\\n" }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {%- if mode == "/think" -%}
    {{ "<|im_start|>assistant\\n" }}
  {%- else -%}
    {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" }}
  {%- endif -%}
{%- endif -%}
"""

DEEPSEEK = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}"
    "{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}"
    "{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] is defined %}"
    "{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<｜Assistant｜>' + tool['type'] + '\\n' + "
    "tool['function']['name'] + '\\n```json\\n' + (tool['function']['arguments'] | tojson) + '\\n```'}}{%- set ns.is_first = true -%}"
    "{%- else %}{{'\\n' + tool['function']['name']}}{%- endif %}{%- endfor %}{{eos_token}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none and message['tool_calls'] is not defined %}"
    "{%- if ns.is_tool %}{{message['content'] + eos_token}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + eos_token}}"
    "{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{'\\n' + message['content']}}{%- endif %}"
    "{%- endfor -%}{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}"
    "{{'<｜Assistant｜>" + "THINK" + "'}}{% endif %}"
)

MACROS = """\
{%- macro type_of(spec, depth=0) -%}
    {%- if spec.type is string -%}
        {%- if spec.type == "object" and spec.properties -%}
            {{- "{" }}
            {%- for name, inner in spec.properties.items() -%}
                {{- name ~ ("" if name in (spec.required or []) else "?") ~ ": " ~ type_of(inner, depth=depth + 1) }}
                {%- if not loop.last %}{{ ", " }}{% endif -%}
            {%- endfor -%}
            {{- "}" }}
        {%- elif spec.type == "array" -%}
            {{- type_of(spec['items'], depth + 1) + "[]" }}
        {%- else -%}
            {{- spec.type }}
        {%- endif -%}
        {%- if spec.enum -%}
            {{- " // " + spec.enum | map("tojson") | join(" | ") }}
        {%- endif -%}
    {%- else -%}
        {{- "any" }}
    {%- endif -%}
{%- endmacro -%}
{%- macro framed(role) -%}
    {{- "<|start|>" + role + "<|message|>" }}{{ caller() }}{{ "<|end|>" }}
{%- endmacro -%}
{%- if tools -%}
    {%- call framed("developer") -%}
        {%- for tool in tools | sort(attribute="function.name") -%}
            {{- loop.index ~ ". " ~ tool.function.name ~ " = (" ~ type_of(tool.function.parameters) ~ ")\\n" -}}
        {%- endfor -%}
    {%- endcall -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == "tool" -%}{% continue %}{%- endif -%}
    {%- set role = {"assistant": "assistant", "system": "system"}.get(message.role, "user") -%}
    {%- call framed(role) -%}
        {{- (message.content or "") | replace("\\r", "") | trim -}}
        {%- for call in message.tool_calls or [] -%}
            {{- " to=" ~ call.function.name ~ " " ~ (call.function.arguments | tojson(separators=(",", ":"), sort_keys=true)) -}}
        {%- endfor -%}
    {%- endcall -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|start|>assistant<|message|>" }}{%- endif -%}
"""

WEATHER = {"type": "function", "function": {"name": "weather", "description": "the \"weather\" in a place, in °C", "parameters": {"type": "object", "properties": {
    "place": {"type": "string", "description": "Zürich, <東京>"}, "unit": {"type": "string", "enum": ["C", "F"]}, "days": {"type": "array", "items": {"type": "integer"}}},
    "required": ["place"]}}}  # fmt: skip
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}, "required": []}, "strict": True, "least": 0.5}}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": [1, 2]}}}

CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "What is a tier?"}, {"role": "assistant", "content": "A place for chunks."}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "And a chunk?\nTell me."},
                  {"role": "assistant", "content": "A span of bytes:\n\n  1. of weights\n  2. 中文 é 🙂"}]},
    {"messages": [{"role": "user", "content": "  spaces  "}, {"role": "assistant", "content": "kept  "}, {"role": "user", "content": "ok"}, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "more?"}]},
    {"messages": [{"role": "user", "content": "think"}, {"role": "assistant", "content": "<think>\nhm, 1 + 1\n</think>\n\nIt is 2."}, {"role": "user", "content": "again"},
                  {"role": "assistant", "content": "Still 2.", "reasoning_content": "the same\n"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "abcdefghi", "content": "22.5"},
                  {"role": "assistant", "content": "22.5 °C."}], "tools": [WEATHER, ADD]},
    {"messages": [{"role": "system", "content": "s /no_think"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                  {"role": "tool", "tool_call_id": "abcdefghi", "content": "1"}, {"role": "tool", "tool_call_id": "abcdefghi", "content": "2"}, {"role": "assistant", "content": "done"}], "tools": [ADD]},
    {"messages": [{"role": "assistant", "content": "I begin."}, {"role": "user", "content": "no"}, {"role": "assistant", "content": "yes"}]},
]  # fmt: skip

HEADERS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
INST = ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
DEEP = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁outputs▁end｜>"]


def family(template, special, bos, eos, end, **more):
    tokens = {"eos_token": eos, **({"bos_token": bos} if bos else {})}
    return {"template": template, "special": special, "tokens": tokens, "end": end, **more}


FAMILIES = {
    "llama-2": family(LLAMA2, ["<s>", "</s>"], "<s>", "</s>", "</s>", prepends=True, refuses=[7]),
    "llama-3": family(LLAMA3, HEADERS, HEADERS[0], "<|eot_id|>", "<|eot_id|>"),
    "llama-3.1": family(LLAMA31, HEADERS, HEADERS[0], "<|eot_id|>", "<|eot_id|>", tools=True),
    "qwen-2.5": family(QWEN25, CHATML, None, "<|im_end|>", "<|im_end|>", tools=True),
    "qwen-3": family(QWEN3, CHATML, None, "<|im_end|>", "<|im_end|>", tools=True),
    "mistral": family(MISTRAL, INST, "<s>", "</s>", "</s>", tools=True, refuses=[1, 6, 7]),
    "mistral, with a space set before": family(MISTRAL, INST, "<s>", "</s>", "</s>", tools=True, prepends=True, refuses=[1, 6, 7]),
    "gemma": family(GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<bos>", "<eos>", "<end_of_turn>", refuses=[7]),
    "phi-3": family(PHI3, ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], None, "<|endoftext|>", "<|end|>"),
    "smollm-2": family(SMOLLM2, CHATML, "<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "smollm-3": family(SMOLLM3, CHATML, None, "<|im_end|>", "<|im_end|>"),
    "deepseek": family(DEEPSEEK.replace("THINK", ""), DEEP, DEEP[0], DEEP[1], DEEP[1], tools=True, refuses=[5, 6]),
    "deepseek that opens a thought": family(DEEPSEEK.replace("THINK", "<think>\\n"), DEEP, DEEP[0], DEEP[1], DEEP[1], tools=True, refuses=range(8)),
    "macros": family(MACROS, ["<|start|>", "<|message|>", "<|end|>", "<|eos|>"], None, "<|eos|>", "<|end|>", tools=True),
}
TEMPLATES = [one["template"] for one in FAMILIES.values()]
