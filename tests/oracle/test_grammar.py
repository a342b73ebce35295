#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as grammars, against jsonschema:
 - what random walks through the masks produce validates;
 - instances that validate are accepted in every spelling (key order, white space, escapes), byte by byte;
 - instances that do not validate are not accepted.

usage: test_grammar.py GRAMMAR_TOOL [SEED]
"""
import json
import random
import subprocess
import sys

import jsonschema

STR = {"type": "string"}
INT = {"type": "integer"}
SCHEMAS = [
    {}, True, {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"type": "boolean"}, {"type": "null"},
    {"type": ["string", "null"]}, {"type": ["integer", "array"], "items": {"type": "boolean"}},
    {"type": "object"}, {"type": "array"},
    {"type": "string", "minLength": 2, "maxLength": 4}, {"type": "string", "maxLength": 0}, {"type": "string", "minLength": 20},
    {"type": "string", "pattern": "^[a-z]+[0-9]{2,3}$"}, {"type": "string", "pattern": "b"}, {"pattern": "^(a|bc)*$", "type": "string"},
    {"type": "string", "pattern": "^a.c", "maxLength": 5}, {"type": "string", "pattern": "^\\w+@\\d\\S$"},
    {"type": "string", "pattern": "^[^\\d\\s]{2}$"},
    {"type": "string", "pattern": "^[^\"\\\\a-y]{1,3}$"}, {"type": "string", "pattern": "é|😀|\\u00df"},
    {"type": "string", "pattern": "^(foo|bar)?(-[0-9]+)*$", "minLength": 3},
    {"enum": ["a", "b\"c", "é", 1, 2.5, None, True, [1, "x"], {"k": [False]}]}, {"const": "only"}, {"const": "\\"}, {"enum": ["a\"b", "\n\\\t"]}, {"type": "string", "pattern": "^[\"\\\\/]$"},
    {"type": "object", "additionalProperties": {"if": {"type": "null"}, "then": {"enum": ["", 0]}, "else": {"type": "null"}}},
    {"type": "object", "patternProperties": {"^x": {"type": "array", "items": STR, "contains": {"type": "null"}}, "^y": INT}, "additionalProperties": False},
    {"type": "object", "properties": {"\"\\": {"const": "\r"}}, "required": ["\"\\"], "additionalProperties": False}, {"const": {"a": {"b": [1, 2]}}},
    {"enum": [0, -1, 1e3, 100, 12.25]}, {"const": 0.1},
    # whole numbers beyond 10^18 and beyond 64 bits, exactly; others in the same document stay exact, too
    {"enum": [1234567890123456789, 5, -3]}, {"enum": [10**19, 12345678901234567890, 7]}, {"const": -12345678901234567890}, {"const": 10**18}, {"const": 10**18 + 1}, {"enum": [10**59 + 7, 0.5]},
    {"const": 9223372036854775807}, {"const": -9223372036854775808}, {"type": "integer", "enum": [12345678901234567890, 9007199254740993]}, {"const": 5.7646075230342355e17},
    {"type": "integer", "multipleOf": 3, "enum": [12345678901234567890, 12345678901234567891, 3]}, {"enum": [12345678901234567890, 1, "x"], "not": {"const": 12345678901234567890}},
    {"enum": [[12345678901234567890, {"a": -98765432109876543210}], 12345678901234567891234, "\"12345678901234567890\\"]}, {"x-note": 99999999999999999999, "const": {"a": 9007199254740993}},
    {"type": "array", "items": {"enum": [12345678901234567890, 12345678901234567891]}, "uniqueItems": True}, {"type": "number", "not": {"const": 12345678901234567890}},
    {"enum": [[1, 1], [1], [], [2]], "contains": {"const": 1}, "minContains": 2}, {"allOf": [{"enum": [[1], [2], []]}, {"contains": {"const": 1}, "minContains": 0}]},
    {"allOf": [{"const": [1, 2, 1]}, {"contains": {"const": 1}, "maxContains": 2}]}, {"enum": [[1, 1], [1], []], "not": {"type": "array", "contains": {"const": 1}, "maxContains": 1}},
    # 'not', 'if' and an overlapping oneOf beside an enum: value by value, also where the rest has no finite form
    {"enum": [[], ["a"], [1, 2], [1.5]], "not": {"type": "array", "items": INT}}, {"enum": [[1], [2, 3], ["a"], [3.0]], "not": {"prefixItems": [INT]}}, {"enum": [[1, 1], [1, 2], [1, 1.0, 3]], "not": {"uniqueItems": True}},
    {"enum": [[1, "a"], [1, 2], [1]], "not": {"prefixItems": [INT], "items": STR}}, {"enum": [[{"a": 1}], [{"b": 2}], []], "not": {"items": {"additionalProperties": False}}}, {"enum": [0.5, 1, 1.25, 12345678901234567890, 3], "not": {"multipleOf": 3}},
    {"oneOf": [{"enum": [[1], [2], "x"]}, {"type": "array", "items": INT}], "enum": [[1], [3], "x", "y"]}, {"enum": [1, 1.5, "s", [0.25]], "if": {"type": ["number", "array"], "items": INT}, "then": {"minimum": 1.25}},
    {"enum": ["é", "éé", "ab", {"k": {"x": 1}, "j": 2}, {"k": 1}], "not": {"minLength": 2, "patternProperties": {"^k": {"type": "integer"}}, "maxProperties": 1}}, {"const": [1, {"a": None}], "not": {"contains": {"type": "object", "required": ["b"]}}},
    {"enum": [0.1, 0.15, 0.07], "not": {"multipleOf": 0.05}}, {"enum": [{"a": "s"}, {"b": {"a": 2}}], "not": {"properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}, "$defs": {"x": STR}},
    {"not": {"prefixItems": [{"const": 2}], "items": False}, "type": "array", "maxItems": 2}, {"type": "array", "items": {"type": ["integer", "string"]}, "not": {"items": False}, "maxItems": 3},
    # between bounds that only an exponent reaches, or whose doubles are the bounds
    {"const": 1e-30}, {"const": 5e-324}, {"type": "number", "minimum": 1e-30, "maximum": 2e-30}, {"type": "number", "minimum": -3e-26, "exclusiveMaximum": -1e-26},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-25}, {"type": "number", "exclusiveMinimum": 0.1, "maximum": 0.10000000000000005},
    {"type": "integer", "minimum": 0}, {"type": "integer", "minimum": -5, "maximum": 17}, {"type": "integer", "exclusiveMinimum": 9, "maximum": 1000},
    {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 300}, {"type": "integer", "multipleOf": 25}, {"type": "integer", "maximum": -3},
    {"type": "integer", "minimum": 1.5, "maximum": 4.5}, {"type": "integer", "minimum": 123456789012, "maximum": 123456789099},
    {"type": "number", "minimum": 0, "maximum": 1}, {"type": "number", "exclusiveMinimum": 0}, {"type": "number", "maximum": -0.5},
    {"type": "number", "minimum": 2.5, "exclusiveMaximum": 2.75}, {"type": "number", "minimum": -1e-3, "maximum": 1e-3},
    {"type": "number", "minimum": 1e10, "maximum": 3e10}, {"type": "number", "minimum": 1e25}, {"type": "number", "multipleOf": 3},
    {"type": "array", "items": INT, "minItems": 1, "maxItems": 3}, {"type": "array", "items": {"type": "array", "items": STR, "maxItems": 2}},
    {"type": "array", "prefixItems": [STR, INT], "items": {"type": "boolean"}}, {"type": "array", "prefixItems": [STR, INT], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "minItems": 2}, {"type": "array", "maxItems": 0}, {"type": "array", "uniqueItems": True, "maxItems": 1},
    {"type": "object", "properties": {"a": INT, "b": STR, "c": {"type": "boolean"}}, "required": ["b"], "additionalProperties": False},
    {"type": "object", "properties": {"a": INT}}, {"type": "object", "properties": {"a": INT}, "required": ["a", "z"]},
    {"type": "object", "additionalProperties": INT}, {"type": "object", "additionalProperties": INT, "minProperties": 2, "maxProperties": 3},
    {"type": "object", "properties": {"a": INT, "b": INT, "c": INT}, "minProperties": 2, "additionalProperties": False},
    {"type": "object", "properties": {"a": INT, "b": INT, "c": INT}, "maxProperties": 1},
    {"type": "object", "properties": {"ab": INT, "abc": STR, "x": {"type": "null"}}, "required": ["x", "abc"], "maxProperties": 2},
    {"type": "object", "patternProperties": {"^x": INT, "y$": {"minimum": 5}}, "additionalProperties": STR},
    {"type": "object", "properties": {"xa": {"maximum": 9}}, "patternProperties": {"^x": INT}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]{1,2}$"}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": {"a": False, "b": INT}}, {"type": "object", "properties": {"q\"uo\\te": INT, "é\n": STR}, "additionalProperties": False},
    {"anyOf": [STR, {"type": "integer", "minimum": 3}]}, {"anyOf": [{"type": "object", "properties": {"a": INT}, "required": ["a"], "additionalProperties": False},
                                                                   {"type": "object", "properties": {"a": STR, "b": INT}, "required": ["b"], "additionalProperties": False}]},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": "x"}, "v": INT}, "required": ["kind", "v"]},
               {"type": "object", "properties": {"kind": {"const": "y"}, "w": STR}, "required": ["kind"]}]},
    {"oneOf": [STR, {"type": "null"}, {"type": "integer", "maximum": 2}, {"type": "integer", "minimum": 5}]},
    {"oneOf": [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 3}]},
    {"allOf": [{"type": "object", "properties": {"a": INT}, "required": ["a"]}, {"properties": {"b": STR}, "required": ["b"]}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}, {"multipleOf": 2}, {"multipleOf": 3}]},
    {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "z$"}, {"maxLength": 4}]},
    {"allOf": [{"anyOf": [STR, INT]}, {"anyOf": [INT, {"type": "boolean"}]}]},
    {"type": "object", "properties": {"t": {"type": "string"}}, "anyOf": [{"required": ["t"]}, {"required": ["u"]}]},
    {"allOf": [{"type": "array", "items": {"type": "number", "minimum": 0}}, {"items": INT, "maxItems": 2}]},
    {"$defs": {"node": {"type": "object", "properties": {"v": INT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                        "required": ["v", "next"], "additionalProperties": False}}, "$ref": "#/$defs/node"},
    {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}, "n": {"enum": [1, 2]}},
     "required": ["n"], "additionalProperties": False},
    {"definitions": {"a/b~c": {"type": "integer", "minimum": 1}}, "type": "array", "items": {"$ref": "#/definitions/a~1b~0c"}, "maxItems": 2},
    {"$defs": {"pos": {"type": "integer", "minimum": 1}}, "properties": {"x": {"$ref": "#/$defs/pos", "maximum": 5}}, "type": "object",
     "required": ["x"], "additionalProperties": False},
    {"$defs": {"n": {"$anchor": "node", "type": "object", "properties": {"v": INT, "next": {"anyOf": [{"$ref": "#node"}, {"type": "null"}]}},
                     "required": ["v", "next"], "additionalProperties": False}}, "$ref": "#node"},
    {"$anchor": "top", "type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#top"}, "maxItems": 2}, "n": {"enum": [1, 2]}},
     "required": ["n"], "additionalProperties": False},
    {"definitions": {"x": {"$dynamicAnchor": "p", "type": "integer", "minimum": 1}}, "type": "array", "items": {"$ref": "#p"}, "maxItems": 2},
    {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"x": {"$id": "#p", "type": "integer", "minimum": 1}}, "type": "array", "items": {"$ref": "#p"}, "maxItems": 2},
    # names and pointers of a resource of its own; values are no schemas
    {"$id": "http://h.test/a", "$defs": {"x": {"$id": "http://h.test/b", "$defs": {"y": {"$anchor": "n", "type": "string"}, "z": {"$ref": "#n"}}, "type": "array",
                                               "prefixItems": [{"$ref": "#n"}, {"$ref": "#/$defs/z"}, {"$ref": "#/$defs/y"}], "items": False},
                                         "w": {"$anchor": "n", "type": "integer", "minimum": 3}},
     "enum": [4, {"$anchor": "n"}, ["a", "b", "c"]], "anyOf": [{"$ref": "#n"}, {"$ref": "#/$defs/x"}]},
    {"type": "string", "format": "date"}, {"type": "string", "format": "time"}, {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"}, {"type": "string", "format": "email"}, {"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"},
    {"type": "string", "format": "hostname", "maxLength": 9}, {"type": "string", "format": "uri"}, {"type": "string", "format": "duration"},
    {"title": "T", "description": "d", "default": 1, "examples": [2], "type": "integer", "x-vendor": {}, "$schema": "https://json-schema.org/draft/2020-12/schema"},
    {"enum": ["a", 1, 2.5], "type": "number"}, {"enum": [1, 2, 3], "minimum": 2}, {"const": 5, "anyOf": [INT, STR]},
    {"minLength": 3, "minimum": 5, "minItems": 1},
    {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 100}, {"type": "number", "multipleOf": 0.25}, {"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 2, "maximum": 4},
    {"type": "object", "properties": {"price": {"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 0}}, "required": ["price"], "additionalProperties": False},
    {"type": "integer", "multipleOf": 1.5, "minimum": -20, "maximum": 50}, {"type": "number", "multipleOf": 0.1, "maximum": -1000},
    {"not": STR}, {"type": ["string", "integer", "null"], "not": {"enum": ["a", 3, None]}}, {"type": "string", "not": {"pattern": "^a"}},
    {"type": "string", "not": {"minLength": 2, "maxLength": 4}}, {"type": "integer", "minimum": -3, "maximum": 9, "not": {"minimum": 2, "maximum": 5}},
    {"type": "number", "minimum": 0, "maximum": 1, "not": {"const": 1}}, {"type": "integer", "not": {"const": 0}}, {"not": {"type": ["object", "array", "number"]}},
    {"type": "object", "properties": {"a": INT, "b": STR}, "not": {"required": ["a", "b"]}},
    {"type": "object", "properties": {"a": INT, "b": STR}, "required": ["a"], "not": {"properties": {"a": {"minimum": 5}}}, "additionalProperties": False},
    {"type": "object", "maxProperties": 3, "not": {"minProperties": 2}}, {"type": "array", "items": INT, "not": {"minItems": 1, "maxItems": 2}},
    {"type": "array", "items": {"type": ["string", "null"]}, "not": {"items": STR}, "maxItems": 3}, {"type": "array", "items": INT, "not": {"contains": {"minimum": 5}}, "maxItems": 3},
    {"type": "array", "prefixItems": [INT], "not": {"prefixItems": [{"minimum": 3}, STR]}, "maxItems": 3},
    {"not": {"not": {"type": "string", "minLength": 3}}},
    {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "n": INT, "s": STR}, "required": ["kind"], "additionalProperties": False,
     "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["n"]}, "else": {"required": ["s"], "properties": {"n": False}}},
    {"type": ["integer", "string"], "if": {"type": "integer"}, "then": {"minimum": 10}}, {"if": {"type": "string"}, "else": {"type": "boolean"}},
    {"type": "object", "properties": {"card": INT, "street": STR, "zip": STR}, "dependentRequired": {"card": ["street"], "street": ["zip"]}, "additionalProperties": False},
    {"type": "object", "properties": {"a": INT, "b": INT}, "dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}, "required": ["b"]}}},
    {"type": "object", "properties": {"a": INT, "b": INT}, "dependencies": {"a": ["b"]}, "additionalProperties": INT},
    {"oneOf": [{"type": "integer", "minimum": 1, "maximum": 10}, {"type": "integer", "minimum": 5, "maximum": 20}]},
    {"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}], "maxLength": 6},
    {"type": "object", "properties": {"a": INT, "b": INT}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": False},
    {"type": "array", "items": INT, "contains": {"minimum": 7}, "maxItems": 4}, {"type": "array", "contains": {"const": "x"}, "minContains": 2, "maxItems": 5},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 20}, "contains": {"minimum": 9}, "minContains": 1, "maxContains": 2, "minItems": 3, "maxItems": 6},
    {"type": "array", "prefixItems": [STR, INT], "contains": {"type": "integer", "minimum": 3}, "items": STR}, {"type": "array", "contains": STR, "maxContains": 1, "items": {"type": ["string", "null"]}},
    {"type": "array", "items": {"enum": ["a", "b", 1, None]}, "contains": {"enum": [1, "b"]}, "minContains": 0, "maxContains": 1},
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "uniqueItems": True}, {"type": "array", "items": STR, "uniqueItems": True, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 5}, "uniqueItems": True, "minItems": 3}, {"type": "array", "items": {"type": ["boolean", "null"]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "items": {"type": "string", "pattern": "^[ab]{1,2}$"}, "uniqueItems": True, "minItems": 2}, {"type": "array", "items": {"enum": [1, 1.0, "1", True]}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True, "minItems": 3},
]
REFUSED = [
    ({"not": {}}, "/: no value satisfies"), ({"type": "number", "not": {"type": "integer"}}, "/not: what it excludes can't be worked out: numbers with a fraction"),
    ({"type": "object", "properties": {"a": {"not": {"additionalProperties": False}}}}, "/properties/a/not: what it excludes can't be worked out: objects with some key"),
    ({"type": "number", "not": {"multipleOf": 3}}, "/not: what it excludes can't be worked out: numbers that are not multiples"),
    ({"not": {"items": {"type": "string"}, "prefixItems": [{}]}}, "/not: what it excludes can't be worked out: arrays with some wrong item"),
    ({"not": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}}, "/not: what it excludes can't be worked out: arrays with equal items"),
    ({"if": {"additionalProperties": INT}, "then": {}}, "/if: what it excludes can't be worked out: objects with some key"),
    ({"type": "array", "contains": {"type": "object", "additionalProperties": INT}, "maxContains": 1}, "/contains: what it excludes can't be worked out"),
    ({"allOf": [{"contains": INT}, {"contains": STR}]}, "/allOf: two different contains"), ({"type": "array", "contains": 5}, "/contains: a schema must be"),
    ({"allOf": [{"enum": [[1]]}, {"contains": {"type": "object", "additionalProperties": INT}, "maxContains": 1}]}, "/allOf/1/contains: what it excludes can't be worked out"),
    ({"enum": [list(range(2000))], "not": {"uniqueItems": True}}, "/not: the schema's combinations are too many"),
    ({"enum": ["a" * 60000], "oneOf": [STR] * 300}, "/oneOf: the schema's combinations are too many"), ({"enum": [[1] * 20000], "oneOf": [{"type": "array"}] * 200}, "/oneOf: the schema's combinations are too many"),
    ({"enum": [{}] * 4000, "not": {"properties": {"a%d" % i: {} for i in range(1000)}}}, "/not: the schema's combinations are too many"),
    ({"enum": [{"k" * 60000: 1}], "oneOf": [{"patternProperties": {"b": True}}] * 300}, "/oneOf: the schema's combinations are too many"),
    ({"type": "number", "maximum": 10**80 + 1}, "/maximum: a number has more than 64 digits"), ({"type": "number", "maximum": "1"}, "/maximum: must be a number"),
    ({"type": "number", "multipleOf": 0.5, "minimum": 10**16}, "/: multiples of a fraction are supported with up to 15 digits"),
    ({"enum": [1], "not": {"multipleOf": 0.5, "maximum": -1e16}}, "/not: multiples of a fraction are supported with up to 15 digits"),
    ({"prefixItems": [INT], "items": {"$ref": "#/prefixItems/x"}}, "/items/$ref: there is nothing at '#/prefixItems/x'"), ({"prefixItems": [INT], "items": {"$ref": "#/prefixItems/00"}}, "/items/$ref: there is nothing at"),
    ({"$defs": {"a": INT}, "$ref": "#/$defs/a%00b"}, "/$ref: there is nothing at"),
    ({"type": "array", "contains": INT, "minContains": -1}, "/minContains: must be a whole number"),
    ({"type": "array", "contains": INT, "maxItems": 1000000, "minContains": 5}, "/contains: so many items"),
    ({"dependentRequired": {"a": 5}}, "/dependentRequired/a: must be an array of names"), ({"dependentRequired": []}, "/dependentRequired: must be an object"),
    ({"dependencies": {"a": [1]}}, "/dependencies/a: must be an array of names"), ({"dependentSchemas": {"a": 1}}, "/dependentSchemas/a: a schema must be"),
    ({"unevaluatedProperties": False}, "/unevaluatedProperties: the keyword is not supported"), ({"unevaluatedItems": False}, "/unevaluatedItems: the keyword is not supported"),
    ({"$dynamicRef": "#x"}, "/$dynamicRef: the keyword is not supported"), ({"divisibleBy": 2}, "/divisibleBy: the keyword is not supported"),
    ({"type": "array", "uniqueItems": 1}, "/uniqueItems: must be true or false"), ({"type": "array", "items": {"type": "object"}, "uniqueItems": True}, "/uniqueItems: is not supported for items that may be objects"),
    ({"type": "array", "items": INT, "uniqueItems": True}, "/uniqueItems: is supported for at most 64"), ({"type": "array", "items": {"type": "string", "maxLength": 9}, "uniqueItems": True}, "/uniqueItems: is supported for at most 64"),
    ({"type": "array", "items": {"type": ["string", "null"]}, "uniqueItems": True}, "/uniqueItems: is supported for strings alone"),
    ({"type": "array", "prefixItems": [STR], "items": STR, "uniqueItems": True}, "/uniqueItems: is not supported together"),
    ({"patternProperties": {"(": {}}}, "/patternProperties/(: "), ({"patternProperties": {str(i): {} for i in range(7)}}, "/patternProperties: more than 6"),
    ({"type": "integer", "multipleOf": 0}, "/multipleOf: must be a number above 0"), ({"properties": 1}, "/properties: must be an object"), ({"enum": 1}, "/enum: must be an array"), ({"$ref": 1}, "/$ref: must be a string"),
    ({"items": {"prefixItems": {}}}, "/items/prefixItems: must be an array"), ({"pattern": 1}, "/pattern: must be a string"),
    ({"type": "x"}, "/type: unknown type 'x'"), ({"type": "string", "pattern": "("}, "/pattern: "), ({"type": "string", "pattern": "(?=a)"}, "/pattern: "),
    ({"type": "string", "pattern": "(a)\\1"}, "/pattern: back references"), ({"type": "string", "format": "nope"}, "/format: the format 'nope'"),
    ({"type": "array", "uniqueItems": True}, "/uniqueItems: "), ({"type": "number", "multipleOf": 0.00001}, "/multipleOf: only whole numbers"), ({"allOf": [{"multipleOf": 0.1}, {"multipleOf": 0.25}]}, "/allOf: two different fractions"), ({"type": "number", "minimum": 0.07, "maximum": 0.07, "multipleOf": 0.01}, "/: no value satisfies"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/oneOf: schemas 0 and 1"), ({"$ref": "http://x/y"}, "/$ref: "),
    ({"$ref": "#nope", "const": {"$anchor": "nope"}}, "/$ref: there is no \"$anchor\": \"nope\" here"), ({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}, "$ref": "#x"}, "/$ref: there is more than one"),
    ({"$defs": {"a": {"$id": "b", "$defs": {"c": {"$anchor": "x"}}}}, "$ref": "#x"}, "/$ref: there is no \"$anchor\""), ({"$anchor": "a", "$ref": "#a"}, "/: the schema refers to itself"),
    ({"$ref": "#/nope"}, "/$ref: there is nothing"), ({"$ref": "#"}, "/: the schema refers to itself"),
    ({"allOf": [{"$ref": "#"}]}, "/: the schema refers to itself"), ({"minimum": "a"}, "/minimum: must be a number"),
    ({"type": "string", "minLength": -1}, "/minLength: must be a whole number"), ({"type": "string", "minLength": 3, "maxLength": 2}, "/: no value satisfies"),
    (False, "/: no value satisfies"), ({"enum": []}, "/: no value satisfies"), ({"allOf": [STR, INT]}, "/: no value satisfies"),
    ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "/: no value satisfies"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "/: no value satisfies"),
    ({"type": "integer", "minimum": 1e25}, "/: whole numbers beyond 10^18"), ({"type": "integer", "enum": [1e25]}, "/enum: a whole number beyond 10^18 is supported as digits, at most 60"),
    ({"enum": [10**60]}, "/enum: a whole number beyond 10^18 is supported as digits, at most 60"), ({"enum": [10**70]}, "/enum: a number has more than 64 digits"), ({"type": "integer", "not": {"const": 12345678901234567890}}, "/not: whole numbers beyond 10^18"), ({"properties": {"a": 5}}, "/properties/a: a schema must be"), ({"anyOf": []}, "/anyOf: must be an array"),
    ({"type": "object", "required": [1]}, "/required: must be an array of names"),
]
NUMBERS = [
    ({"type": "number", "multipleOf": 0.01}, ["0.5", "2.50", "0", "-3.1", "12345678.25", "7"], ["0.07", "0.005", "1e2", "2.500", "01.5"]), # spellings: one for whole numbers, no idle digits for a constant
    ({"type": "integer", "minimum": 0, "maximum": 18446744073709551615}, ["0", "7", "999999999999999999"], ["-1", "18446744073709551616"]), # bounds past 64 bits
    ({"type": "number", "multipleOf": 0.0001}, ["922337203685478", "999999999999999", "-999999999999999.5"], ["1000000000000000"]), # more than 64 bits of steps
    ({"type": "number", "multipleOf": 0.0001, "minimum": 990000000000000}, ["990000000000000", "990000000000001.25"], ["1", "99000000000000"]),
    ({"enum": [12345678901234567890, 5, 0.25, 1e16], "multipleOf": 0.5}, ["12345678901234567890", "5", "10000000000000000"], ["0.25"]), # a constant is a multiple wherever it lies
    ({"enum": [12345678901234567890, 5, 0.25], "not": {"multipleOf": 0.5}}, ["0.25"], ["12345678901234567890", "5"]),
    (INT, ["0", "-7", "12345678901234567890"], ["1.0", "1e5", "1E2", "-3.00", "5e0", "01"]),
    ({"type": "integer", "minimum": 1, "maximum": 9}, ["5"], ["5.0", "5e0"]), ({"type": "number", "multipleOf": 5}, ["15"], ["15.0", "1.5e1"]),
    ({"const": 5}, ["5"], ["5.0", "5e0"]), ({"const": 5.0}, ["5"], ["5.0"]), ({"enum": [2.5, 1]}, ["2.5", "2.5e0", "1"], ["2.50", "2.500000", "1.0"]),
    ({"const": 1e25}, ["1e25", "1E+25"], ["1.0e25", "10000000000000000000000000", "10000000000000000905969664", "10e24", "1"]), ({"const": -1.2345e300}, ["-1.2345e300"], ["-12345e296", "1.2345e300"]),
    ({"const": 1e18}, ["1e18"], ["1"]), ({"const": 1.7976931348623157e308}, ["1.7976931348623157e308"], ["1.8e308"]), ({"type": "number", "exclusiveMinimum": 0.1}, ["0.10000000000000002"], ["0.10000000000000000000001", "0.1"]),
    ({"const": 1e-7}, ["1e-07", "1e-7", "0.0000001"], ["0.00000010"]), ({"type": "number"}, ["1.0", "1e5", "2.50"], []),
]
GBNF = [
    ('root ::= "yes" | "no" reason?\nreason ::= ": " [^\\n]{1,5} # c', ["yes", "no", "no: é", "no: abcde"], ["", "no:", "no: abcdef", "yesx", "no: a\n"]),
    ('root ::= (item ("," item)*)?\nitem ::= [a-z]+ | "(" root ")"', ["", "a", "ab,c", "(a,(b),()),c"], ["a,", "(a", "A"]),
    ('root ::= .{2} "\\x41" [\\u00e9-\\u00ff]', ["é€Aé", "xxAÿ"], ["xA", "xxAe"]),
    ("ws ::= [ \\t\\n]*\nroot ::= num ws (\"+\" ws num ws)*\nnum ::=\n  [0-9]+\n  | \"-\" num", ["1", "1 + -2", "--1+\n2 "], ["+", "1 +", "1 2"]),
]
GBNF_REFUSED = [
    ("root ::= a", "line 1: there is no rule 'a'"), ("a ::= \"x\"", "line 1: there is no rule 'root'"),
    ("root ::= root \"a\" | \"b\"", "line 1: rule 'root' can begin with itself"), ("root ::= \"a\" root", "line 1: rule 'root' can never end"),
    ("root ::= \"a", "line 1: the literal that begins here has no end"), ("root ::= (\"a\"", "line 1: ')' is missing"),
    ("\nroot = x", "line 2: a rule is expected here"), ("root ::= [z-a]", "line 1: a range of a class is out of order"),
]
FORMATS = {"date": ["2024-02-29", "1999-12-31"], "time": ["10:00:00Z", "23:59:59.5+01:30"], "date-time": ["2024-02-29T10:00:00Z"],
           "uuid": ["123e4567-e89b-12d3-a456-426614174000"], "email": ["a.b@c.de", "x@y"], "ipv4": ["0.0.0.0", "255.1.20.3"],
           "ipv6": ["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1", "::ffff:1.2.3.4"], "hostname": ["a.b-c", "x"], "uri": ["http://a/b?c#d", "urn:x"],
           "duration": ["P1D", "PT5M", "P1Y2M3DT4H"]}


class Gen:
    """Candidates that often satisfy a schema; whether they do, jsonschema says."""

    def __init__(self, rnd, root):
        self.r, self.root = rnd, root

    def text(self):
        return "".join(self.r.choice("abcxyz019 \"\\/\n\té߀😀-.@") for _ in range(self.r.choice([0, 1, 1, 2, 3, 5, 9])))

    def number(self, s):
        lo, hi = s.get("minimum", s.get("exclusiveMinimum")), s.get("maximum", s.get("exclusiveMaximum"))
        r = self.r
        picks = [0, 1, -1, 7, 12.5, -0.25, 1e-7, 1e20, 123456789, r.randint(-1000, 1000), r.random(), r.uniform(-1e6, 1e6)]
        for b in (lo, hi):
            if b is not None:
                picks += [b, b + 1, b - 1, b * 2, b / 2, b + r.random(), b - r.random(), int(b) + 1] * 2
        if lo is not None and hi is not None:
            picks += [r.uniform(lo, hi), r.randint(int(lo), max(int(lo), int(hi)))] * 6
        v = r.choice(picks)
        m = s.get("multipleOf")
        if m and r.random() < 0.8:
            v = int(v) // m * m if m == int(m) else round(round(v / m) * m, 4)
        if (s.get("type") == "integer" or r.random() < 0.2) and abs(v) < 1e18:
            v = int(v)
        return v

    def value(self, s, depth=0):
        r = self.r
        if s is True or s == {} or s is False or r.random() < 0.04 or depth > 6:
            kinds = [None, True, r.randint(-9, 99), r.random(), self.text()]
            if depth < 3:
                kinds += [[self.value({}, depth + 1) for _ in range(r.randint(0, 2))], {self.text(): self.value({}, depth + 1) for _ in range(r.randint(0, 2))}]
            return r.choice(kinds)
        if "const" in s and r.random() < 0.9:
            return s["const"]
        if "enum" in s and r.random() < 0.9:
            return r.choice(s["enum"]) if s["enum"] else None
        for key in ("anyOf", "oneOf"):
            if key in s and r.random() < 0.9:
                return self.value({**{k: v for k, v in s.items() if k != key}, **r.choice(s[key])}, depth)
        if "allOf" in s and r.random() < 0.9:
            merged = {k: v for k, v in s.items() if k != "allOf"}
            for sub in s["allOf"]:
                for k, v in sub.items():
                    if k == "properties":
                        merged[k] = {**merged.get(k, {}), **v}
                    elif k == "required":
                        merged[k] = merged.get(k, []) + v
                    else:
                        merged[k] = v
            return self.value(merged, depth)
        if "$ref" in s:
            t = self.root
            if s["$ref"][1:2] not in ("", "/"):
                t = next(named(t, s["$ref"]))
            for part in s["$ref"][1:].split("/")[1:]:
                t = t[part.replace("~1", "/").replace("~0", "~")] if part in t or "~" in part else {}
            return self.value({**t, **{k: v for k, v in s.items() if k not in ("$ref", "$defs", "definitions")}}, depth)
        t = s.get("type", r.choice(["null", "boolean", "string", "number", "object", "array"]))
        if isinstance(t, list):
            t = r.choice(t)
        if t == "null":
            return None
        if t == "boolean":
            return r.random() < 0.5
        if t in ("number", "integer"):
            return self.number(s)
        if t == "string":
            if "format" in s:
                return r.choice(FORMATS[s["format"]])
            picks = [self.text() for _ in range(6)] + ["ab12", "abc123", "xby", "", "abcbc", "a\nc", "abcd", "w@1z", "é", "az", "aqz", "foo-12", "-1-2", "zé߀", "z"]
            n = s.get("minLength", 0)
            return (r.choice(picks) + "q" * r.choice([0, 0, n]))[:s.get("maxLength", 1000)]
        if t == "array":
            items, prefix = s.get("items", {}), s.get("prefixItems", [])
            n = r.choice([0, 1, 2, 3, s.get("minItems", 0), min(s.get("maxItems", 4), 9), len(prefix)])
            return [self.value(prefix[i] if i < len(prefix) else items, depth + 1) for i in range(n)]
        out, props = {}, s.get("properties", {})
        for k in props:
            if k in s.get("required", []) or r.random() < 0.5:
                out[k] = self.value(props[k], depth + 1)
        for k in s.get("required", []):
            if k not in out and r.random() < 0.95:
                out[k] = self.value(props.get(k, {}), depth + 1)
        for _ in range(r.choice([0, 0, 1, 2, s.get("minProperties", 0)])):
            k = r.choice([self.text(), "x1", "xy", "ay", "q", "a", "bb", "c", "ab"])
            sub = s.get("additionalProperties", {})
            for p, v in s.get("patternProperties", {}).items():
                if __import__("re").search(p, k):
                    sub = v
            out.setdefault(k, self.value(sub, depth + 1))
        return out


def named(s, ref):
    """The schemas with the plain name, wherever they are: candidates need not fit."""
    if isinstance(s, dict):
        if ref in ("#" + str(s.get("$anchor")), "#" + str(s.get("$dynamicAnchor")), s.get("$id")):
            yield s
        for x in s.values():
            yield from named(x, ref)


def shuffled(v, r):
    if isinstance(v, dict):
        items = list(v.items())
        r.shuffle(items)
        return {k: shuffled(x, r) for k, x in items}
    return [shuffled(x, r) for x in v] if isinstance(v, list) else v


def whole(v):
    """Whole numbers as whole numbers: that is how the grammar writes them where a schema asks for integers (docs/structured-output.md)."""
    if isinstance(v, dict):
        return {k: whole(x) for k, x in v.items()}
    if isinstance(v, list):
        return [whole(x) for x in v]
    return int(v) if isinstance(v, float) and v == int(v) else v


def spellings(v, r):
    yield json.dumps(v)
    yield json.dumps(shuffled(v, r), ensure_ascii=False, separators=(",", ":"))
    yield json.dumps(shuffled(v, r), indent=r.choice([1, 2, 4, "\t"]), ensure_ascii=r.random() < 0.5).replace("/", r.choice(["/", "\\/"]))


class Tool:
    def __init__(self, path):
        self.p = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **q):
        self.p.stdin.write((json.dumps(q) + "\n").encode())
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            raise SystemExit(f"the tool ended at {json.dumps(q)[:300]}")
        return json.loads(line)


def numbers(v):
    """The numbers within a value."""
    if isinstance(v, (list, dict)):
        return [x for w in (v.values() if isinstance(v, dict) else v) for x in numbers(w)]
    return [v] if isinstance(v, (int, float)) else []


def draft_of(schema):
    """The validator of the draft that a schema is written for."""
    return jsonschema.Draft7Validator if "dependencies" in str(schema) or "draft-07" in str(schema) else jsonschema.Draft202012Validator


def check_schema(tool, schema, rnd, bad):
    """Returns (walks finished, valid instances, invalid instances)."""
    got = tool.ask(schema=json.dumps(schema))
    if "error" in got:
        bad.append(f"{json.dumps(schema)}: refused: {got['error']}")
        return 0, 0, 0
    validator = draft_of(schema)(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    finished = valid = invalid = 0
    for i in range(25):
        got = tool.ask(walk=rnd.randrange(1 << 40), limit=rnd.choice([5, 20, 60, 150]))
        if "dead" in got or "error" in got:
            bad.append(f"{json.dumps(schema)}: dead end: {json.dumps(got)[:300]}")
        elif got["text"] is not None:
            finished += 1
            try:
                v = json.loads(got["text"])
            except ValueError as e:
                bad.append(f"{json.dumps(schema)}: not JSON ({e}): {got['text']!r:.300}")
                continue
            e = next(validator.iter_errors(v), None)
            if e:
                bad.append(f"{json.dumps(schema)}: walk does not validate ({e.message:.100}): {got['text']!r:.300}")
    for extra in (0, 1, 3, 10, 40, 200):
        got = tool.ask(led=rnd.randrange(1 << 40), extra=extra)
        if not got.get("done"):
            bad.append(f"{json.dumps(schema)}: not led to an end with {extra} tokens to spare: {json.dumps(got)[:300]}")
            continue
        e = next(validator.iter_errors(json.loads(got["text"])), None)
        if e:
            bad.append(f"{json.dumps(schema)}: led to what does not validate ({e.message:.100}): {got['text']!r:.300}")
    gen = Gen(rnd, schema)
    # jsonschema checks a format only if it has a package for it, and of an address only that there is an @
    unknown = isinstance(schema, dict) and (schema.get("format", "date") not in jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers or schema.get("format") == "email")
    for _ in range(40):
        v = gen.value(schema)
        if any(k in str(schema) for k in ("integer", "multipleOf", "const", "enum")):
            v = whole(v)
        if '"multipleOf": 0.' in json.dumps(schema) and any(abs(x) >= 1e15 for x in numbers(v)):
            continue  # 15 digits before the point
        ok = validator.is_valid(v)
        if unknown and isinstance(v, str) and v not in FORMATS[schema["format"]]:
            continue
        valid += ok
        invalid += not ok
        for text in spellings(v, rnd):
            got = tool.ask(text=text)
            if got["done"] != ok:
                bad.append(f"{json.dumps(schema)}: {'valid but refused' if ok else 'invalid but accepted'}: {text!r:.300} {got}")
                break
    return finished, valid, invalid


def main():
    tool = Tool(sys.argv[1])
    rnd = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    bad = []
    counts = [0, 0, 0]
    for schema in SCHEMAS:
        got = check_schema(tool, schema, rnd, bad)
        counts = [a + b for a, b in zip(counts, got)]
    for schema, yes, no in NUMBERS:
        tool.ask(schema=json.dumps(schema))
        bad += [f"{schema}: {t!r} is {'refused' if want else 'accepted'}" for t, want in [(t, True) for t in yes] + [(t, False) for t in no]
                if tool.ask(text=t)["done"] != want]
    for schema, message in REFUSED:
        got = tool.ask(schema=json.dumps(schema))
        if not got.get("error", "").startswith(message):
            bad.append(f"{json.dumps(schema)}: expected a refusal '{message}...', got {got}")
    for src, yes, no in GBNF:
        got = tool.ask(gbnf=src)
        if "error" in got:
            bad.append(f"{src!r}: {got['error']}")
            continue
        for text, want in [(t, True) for t in yes] + [(t, False) for t in no]:
            if tool.ask(text=text)["done"] != want:
                bad.append(f"{src!r}: {text!r} is {'refused' if want else 'accepted'}")
        for extra in (0, 2, 20):
            got = tool.ask(led=rnd.randrange(1 << 40), extra=extra)
            if not got.get("done") or not tool.ask(text=got["text"])["done"]:
                bad.append(f"{src!r}: led {got}")
        for i in range(20):
            got = tool.ask(walk=rnd.randrange(1 << 40), limit=20)
            if "dead" in got or (got["text"] is not None and not tool.ask(text=got["text"])["done"]):
                bad.append(f"{src!r}: walk {got}")
    for src, message in GBNF_REFUSED:
        got = tool.ask(gbnf=src)
        if not got.get("error", "").startswith(message):
            bad.append(f"{src!r}: expected a refusal '{message}...', got {got}")
    for line in bad[:40]:
        print(line)
    print(f"{len(SCHEMAS)} schemas: {counts[0]} walks validated, {counts[1]} valid and {counts[2]} invalid instances; {len(bad)} wrong")
    return 1 if bad or min(counts) < 500 else 0


if __name__ == "__main__":
    sys.exit(main())
