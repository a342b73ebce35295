# SPDX-License-Identifier: Apache-2.0
"""Answers of the whole daemon at temperature 1, from a model of random weights, validate with jsonschema: each ends complete.

usage: test_daemon_schemas.py HEARTHD MODELS [ANSWERS]
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "oracle"))
import json
import threading

import jsonschema

from daemonlib import *
from test_grammar import SCHEMAS, draft_of

ANSWERS = int(sys.argv[3]) if len(sys.argv) > 3 else 200
CLIENTS = 4
# As people write them.
LARGER = [
    {"type": "object", "properties": {"invoice": {"type": "string", "pattern": "^INV-[0-9]{4}$"}, "date": {"type": "string", "format": "date"},
                                      "customer": {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "email": {"type": "string", "format": "email"},
                                                                                    "address": {"type": ["object", "null"], "properties": {"city": {"type": "string"}, "zip": {"type": "string", "pattern": "^\\d{5}$"}},
                                                                                                "required": ["city"], "additionalProperties": False}},
                                                   "required": ["name"], "additionalProperties": False},
                                      "lines": {"type": "array", "minItems": 1, "maxItems": 3, "items": {
                                          "type": "object", "properties": {"sku": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 1}, "price": {"type": "number", "exclusiveMinimum": 0}},
                                          "required": ["sku", "n", "price"], "additionalProperties": False}},
                                      "currency": {"enum": ["EUR", "USD", "JPY"]}, "paid": {"type": "boolean"}},
     "required": ["invoice", "lines", "currency"], "additionalProperties": False},
    {"$defs": {"expr": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[a-z]$"}, {"type": "object", "properties": {
        "op": {"enum": ["+", "-", "*"]}, "l": {"$ref": "#/$defs/expr"}, "r": {"$ref": "#/$defs/expr"}}, "required": ["op", "l", "r"], "additionalProperties": False}]}}, "$ref": "#/$defs/expr"},
    {"type": "object", "properties": {"steps": {"type": "array", "items": {"oneOf": [
        {"type": "object", "properties": {"tool": {"const": "search"}, "query": {"type": "string", "minLength": 3}}, "required": ["tool", "query"], "additionalProperties": False},
        {"type": "object", "properties": {"tool": {"const": "wait"}, "s": {"type": "integer", "minimum": 1, "maximum": 60}}, "required": ["tool", "s"], "additionalProperties": False}]}, "maxItems": 4},
        "done": {"type": "boolean"}}, "required": ["steps", "done"]},
    {"type": "array", "prefixItems": [{"enum": ["point", "line"]}, {"type": "array", "items": {"type": "number", "minimum": -180, "maximum": 180}, "minItems": 2, "maxItems": 2}],
     "items": {"type": "array", "items": {"type": "number"}, "maxItems": 2}, "minItems": 2, "maxItems": 4},
    {"type": "object", "patternProperties": {"^[a-z]{2}-[A-Z]{2}$": {"type": "string", "maxLength": 20}}, "additionalProperties": False, "minProperties": 1, "maxProperties": 4},
    {"type": "object", "properties": {"when": {"type": "string", "format": "date-time"}, "where": {"type": "string", "format": "uri"}, "who": {"type": "string", "format": "uuid"},
                                      "from": {"type": "string", "format": "ipv4"}}, "required": ["when", "who", "from"]},
    {"$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 3}},
                        "required": ["v"], "additionalProperties": False}}, "allOf": [{"$ref": "#/$defs/tree"}, {"required": ["kids"]}]},
]


def answers_validate():
    every = LARGER * 3 + [s for s in SCHEMAS if s is not True]
    jobs = [(i, every[i % len(every)]) for i in range(ANSWERS)]
    wrong, lock, n_tokens = [], threading.Lock(), [0]
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    with daemon() as d:
        def work():
            with Client(d.path) as c:
                while True:
                    with lock:
                        if not jobs or len(wrong) > 20:
                            return
                        i, schema = jobs.pop()
                    text, tokens, reply = c.generate(model="tiny", prompt="the", json_schema=json.dumps(schema), seed=i + 1, temperature=1.0, top_k=0,
                                                     top_p=1.0, min_p=0.0, max_tokens=(160, 200, 300)[i % 3])
                    try:
                        assert reply["finish"] == "stop", reply["finish"]
                        value = json.loads(text)
                        draft_of(schema)(schema, format_checker=checker).validate(value)
                    except (AssertionError, ValueError, jsonschema.ValidationError) as e:
                        with lock:
                            wrong.append(f"seed {i + 1}: {json.dumps(schema)[:300]}: {text[:300]!r}: {str(e)[:200]}")
                    with lock:
                        n_tokens[0] += len(tokens)

        with Client(d.path) as c:
            c.generate(model="tiny", prompt="the", max_tokens=1)  # is the default from now on
        threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    assert not wrong, "\n".join(wrong)
    print(f"{ANSWERS} answers to {len(every)} schemas, {n_tokens[0]} tokens: all validate")


sys.exit(run_tests([answers_validate]))
