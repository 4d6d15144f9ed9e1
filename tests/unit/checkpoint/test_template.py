from __future__ import annotations

import re
import time
import tracemalloc

import pytest

from stagelink.checkpoint.open import open_checkpoint
from stagelink.checkpoint.template import ChatTemplate
from stagelink.errors import CheckpointError, ConfigError, StagelinkError

TALK = [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "Yo"}]


def render(text, messages=TALK, **options):
    return ChatTemplate(text).render(messages, **options)


def test_blocks_leave_no_line_or_indent_behind():
    text = (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\nU:{{ m.content }}\n"
        "    {% endif %}\n{% endfor %}\n"
    )
    assert render(text) == "U:Hi <b>\n"


def test_tojson_escapes_no_html_and_keeps_order_and_letters():
    text = "{{ messages[0] | tojson }}|{{ {'b': 1, 'a': '\u00e9'} | tojson(indent=1) }}"
    want = '{"role": "user", "content": "Hi <b>"}|{\n "b": 1,\n "a": "\u00e9"\n}'
    assert render(text) == want


def test_loop_controls_and_loop_facts_work():
    text = (
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}"
        "{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.index }}{% endfor %}"
    )
    assert render(text) == "TrueFalse21"


def test_loops_filter_unpack_and_call_themselves():
    text = (
        "{% for k, v in messages[0].items() if k != 'role' %}{{ k }}={{ v }}{% endfor %}"
        "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}({{ loop(x) }})"
        "{% else %}{{ x }}{% endif %}{% endfor %}"
        "{% for x in nothing %}{% else %}none{% endfor %}"
    )
    assert render(text) == "content=Hi <b>(1(2))3none"


def test_namespaces_macros_and_set_blocks_work():
    text = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{% macro turn(m) %}<{{ m.role ~ ':' ~ m.content | trim }}>{% endmacro %}"
        "{% set all %}{{ turn(messages[0]) }}{{ ns.n }}{% endset %}{{ all }}"
        "{{ messages | map(attribute='role') | join(',') }}{{ 'a-b'.replace('-', '+') }}"
        "{{ '%s' % 5 }}{{ 'ab' * 2 }}{{ 'x'.split('x') | length }}"
    )
    assert render(text) == "<user:Hi <b>>2user,assistanta+b5abab2"


def test_the_mark_around_an_answer_for_training_prints_its_body():
    text = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(text) == "Hi <b>Yo"


def test_the_prompt_for_an_answer_and_the_special_tokens_are_there():
    text = (
        "{{ bos_token }}{% if add_generation_prompt %}go{% endif %}{{ tools is none }}{{ unset }}"
    )
    tokens = {"bos_token": "<s>"}
    assert render(text, **tokens) == "<s>goTrue"
    assert render(text, add_generation_prompt=False, **tokens) == "<s>True"


def test_the_date_is_there():
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))


def test_messages_that_the_template_refuses_are_the_callers_fault():
    with pytest.raises(ConfigError) as caught:
        render("{{ raise_exception('roles must\nalternate') }}")
    assert caught.value.reason == "template_refused"
    assert "roles must" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{% for %}",
        "{{ 'a' + 5 }}",
        "{{ messages[7].content.more }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ self.__init__.__globals__ }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{{ messages | map('attr', '__class__') | list }}{{ messages.__class__.__base__ }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "(" * 5000,
        "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "{{ x | unknown_filter }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_gives_one_line_or_nothing(text):
    result, caught = "", None
    try:
        result = render(text)
    except StagelinkError as error:
        caught = error
    assert "class" not in result
    assert caught is None or caught.reason == "template"
    assert "\n" not in str(caught)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * 'a' }}",
        "{{ [0] * 1000000000 }}",
        "{{ 10 ** 10000 }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    ],
)
def test_a_template_cannot_grow(text):
    refused_and_small(text)


@pytest.mark.parametrize(
    "change",
    [
        "{% set ns.s = ns.s ~ ns.s %}",
        "{% set ns.s = ns.s + ns.s %}",
        "{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}",
        "{% set ns.s = ns.s.replace('a', 'aa') %}",
        "{% set ns.s = ns.s | replace('a', 'aa') %}",
        "{% set ns.s = [ns.s, ns.s] | join %}",
        "{% set ns.s = ns.s.join([ns.s, ns.s]) %}",
        "{% set ns.s = double(ns.s) %}",
        "{% set ns.n = ns.n * ns.n %}",
        "{% set ns.l = ns.l + ns.l %}",
    ],
)
def test_a_template_cannot_grow_by_doubling(change):
    start = (
        "{% macro double(s) %}{{ s }}{{ s }}{% endmacro %}"
        "{% set ns = namespace(s='aaaaaaaa', n=9, l=[1, 2, 3]) %}"
    )
    refused_and_small(start + "{% for i in range(60) %}" + change + "{% endfor %}")


def refused_and_small(text):
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as caught:
            render(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "template"
    assert peak < 128 << 20


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% set s = 'a' * 99999 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
        "{% for x in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    ],
)
def test_a_template_cannot_run_for_long(text, monkeypatch):
    monkeypatch.setattr("stagelink.checkpoint.template_bounds.RENDER_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        render(text)
    assert caught.value.reason == "template"
    assert time.monotonic() - began < 3


def test_a_budget_is_for_one_rendering(monkeypatch):
    monkeypatch.setattr("stagelink.checkpoint.template_bounds.RENDER_WORK_CHARS_MAX", 1000)
    template = ChatTemplate("{{ 'a' * 400 }}")
    assert all(len(template.render(TALK)) == 400 for _ in range(9))


def test_a_folders_own_template_file_comes_first_and_a_named_list_has_a_default(folder):
    folder.tokenizer_config["chat_template"] = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "talk"},
    ]
    path = folder.write()
    assert open_checkpoint(path).chat_template == "talk"
    (path / "chat_template.jinja").write_text("file")
    assert open_checkpoint(path).chat_template == "file"


@pytest.mark.parametrize("value", [5, {"a": 1}, [{"name": "x", "template": "y"}]])
def test_a_template_that_is_no_text_is_refused(folder, value):
    folder.tokenizer_config["chat_template"] = value
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder.write())
    assert caught.value.reason == "template"


def test_a_checkpoint_may_have_no_template(folder, make_gguf):
    del folder.tokenizer_config["chat_template"]
    assert open_checkpoint(folder.write()).chat_template is None
    source = make_gguf()
    source.template = None
    assert open_checkpoint(source.write()).chat_template is None
