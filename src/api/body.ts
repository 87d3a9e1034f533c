// Parses and validates the JSON body or the query string of a request. The result is the value, or
// the error reply. The cost of a hostile body must stay linear in its size.

import { type Static, type TSchema, Type } from "typebox";
import { Compile, type Validator } from "typebox/compile";
import type { ErrorDetail } from "../broker/errors.ts";
import { parseWithLongIntegers } from "../lib/long-numbers.ts";
import { OrderedLookup } from "../lib/ordered-lookup.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { edgeReply, errorReply, unsupportedEncoding } from "./errors.ts";
import {
  ID_PATTERN,
  LABEL_PATTERN,
  OPTIONAL_ID_PATTERN,
  OPTIONAL_LABEL_PATTERN,
  WELL_FORMED_PATTERN,
} from "./fields.ts";

/**
 * Result of reading a request. `ignored` lists the fields that are not in the schema, for a reply
 * header.
 */
export type ReadResult<T> =
  | { readonly value: T; readonly ignored?: string | undefined }
  | { readonly refusal: HttpReply };
export type Reader<T> = (request: HttpRequest, adapt?: Adapt) => ReadResult<T>;

/** Converts a parsed JSON body from another dialect to the form that the schemas describe. */
export type Adapt = (body: unknown) => unknown;

/**
 * A check that runs before the validation. Returns an error reply, or `undefined` if the body
 * passes.
 */
export type BodyCheck = (body: unknown) => HttpReply | undefined;

/** Decoder that skips a byte order mark, which some editors and HTTP clients write. */
const utf8 = new TextDecoder("utf-8", { fatal: true });

export function jsonReader<S extends TSchema>(
  schema: S,
  precheck?: BodyCheck,
  longIntegers?: string,
): Reader<Static<S>> {
  const validator = validatorOf(schema);
  const fields = fieldsOf(schema);
  const nullRule = nullRuleOf(schema);
  const emptyBody = `The body is empty; send a JSON ${Type.IsArray(schema) ? "array" : "object"}`;
  return (request, adapt) => {
    const encoding = request.headers["content-encoding"] ?? "";
    if (encoding !== "" && encoding.toLowerCase() !== "identity")
      return { refusal: unsupportedEncoding(encoding) };
    if (!isJson(request.headers["content-type"] ?? ""))
      return { refusal: edgeReply("unsupported_media_type") };
    const text = textOf(request);
    if (text === undefined) return refuse("The body is not valid UTF-8");
    let value: unknown;
    try {
      value =
        longIntegers === undefined ? JSON.parse(text) : parseWithLongIntegers(text, longIntegers);
    } catch (error) {
      return refuse(text.trim() === "" ? emptyBody : notJson(error));
    }
    if (adapt !== undefined) value = adapt(withoutNulls(nullRule, value, true));
    else if (text.includes("null")) value = withoutNulls(nullRule, value, false);
    const refusal = precheck?.(value);
    if (refusal !== undefined) return { refusal };
    const result = validate<Static<S>>(schema, validator(), value);
    if ("refusal" in result) return result;
    const ignored = ignoredFields(fields, value);
    return ignored === undefined ? result : { ...result, ignored };
  };
}

/** Returns the body without a byte order mark, or `undefined` if it is not valid UTF-8. */
export function textOf({ body }: Pick<HttpRequest, "body">): string | undefined {
  try {
    return utf8.decode(body);
  } catch {
    return undefined;
  }
}

interface NullRule {
  readonly isOptional: boolean;
  readonly isList: boolean;
  readonly fields: readonly (readonly [string, NullRule])[];
}

function nullRuleOf(schema: TSchema): NullRule {
  const properties = Type.IsObject(schema) ? Object.entries(schema.properties) : [];
  return {
    isOptional: Type.IsOptional(schema),
    isList: Type.IsArray(schema) && !("minItems" in schema && Number(schema.minItems) > 0),
    fields: properties.map(([name, inner]) => [name, nullRuleOf(inner)]),
  };
}

/**
 * Removes optional fields that are `null`. With `fillsLists`, a required list that is missing or
 * `null` becomes an empty list, unless its schema requires items.
 */
function withoutNulls(rule: NullRule, value: unknown, fillsLists: boolean): unknown {
  if (value === null) return fillsLists && rule.isList ? [] : null;
  if (typeof value !== "object" || rule.fields.length === 0 || Array.isArray(value)) return value;
  let copy: Map<string, unknown> | undefined;
  for (const [name, field] of rule.fields) {
    const missing = fillsLists && !field.isOptional ? null : undefined;
    const before = Object.hasOwn(value, name) ? Reflect.get(value, name) : missing;
    if (typeof before !== "object") continue;
    const isAbsent = before === null && field.isOptional;
    const after = isAbsent ? undefined : withoutNulls(field, before, fillsLists);
    if (after === before) continue;
    copy ??= new Map(Object.entries(value));
    if (isAbsent) copy.delete(name);
    else copy.set(name, after);
  }
  return copy === undefined ? value : Object.fromEntries(copy);
}

const MAX_IGNORED = 8;
/** Matches field names that are safe in a header. Other names are only counted. */
const HEADER_SAFE = /^[\w.-]{1,64}$/;

/** Fields of an object schema, by name. A field whose schema is not an object is `null`. */
class Fields {
  readonly #lookup: OrderedLookup<Fields | null>;

  constructor({ properties }: Type.TObject) {
    const entries = Object.entries(properties);
    const byName = new Map(entries.map(([name, inner]) => [name, fieldsOf(inner)]));
    this.#lookup = new OrderedLookup(byName, byName.size);
  }

  /** Adds the paths of fields that are not in the schema to `ignored`. */
  collectIgnored(value: object, path: string, ignored: string[]): void {
    let place = 0;
    for (const name in value) {
      const nested = this.#lookup.get(name, place++);
      if (nested === undefined) ignored.push(path + name);
      else if (nested !== null)
        nested.collectIgnored(Reflect.get(value, name), `${path}${name}.`, ignored);
    }
  }
}

function fieldsOf(schema: TSchema): Fields | null {
  return Type.IsObject(schema) ? new Fields(schema) : null;
}

function ignoredFields(fields: Fields | null, value: unknown): string | undefined {
  const ignored: string[] = [];
  fields?.collectIgnored(value as object, "", ignored);
  return headerList(ignored);
}

function headerList(ignored: readonly string[]): string | undefined {
  if (ignored.length === 0) return undefined;
  const names = ignored.filter((name) => HEADER_SAFE.test(name)).slice(0, MAX_IGNORED);
  const unnamed = ignored.length - names.length;
  return [...names, ...(unnamed > 0 ? [`${unnamed} more`] : [])].join(", ");
}

/** Returns an error message that, unlike the parser's message, does not quote the body. */
function notJson(error: unknown): string {
  const [, position] = / at position (\d{1,9})\b/.exec(String(error)) ?? [];
  const place = position === undefined ? "" : `: the error is at character ${Number(position) + 1}`;
  return `The body is not valid JSON${place}`;
}

/**
 * Returns a header value that lists the query parameters that are not in `names`, or `undefined` if
 * there are no such parameters.
 */
export function ignoredParameters(query: string, names: ReadonlySet<string>): string | undefined {
  const ignored = query
    .split("&")
    .filter((pair) => pair !== "")
    .map((pair) => splitPair(pair)[0])
    .filter((name) => !names.has(name));
  return headerList([...new Set(ignored)]);
}

/** Returns values from the path or the headers. They override the values in the query string. */
type OverridingValues = (request: HttpRequest) => Readonly<Record<string, string>>;

const NO_VALUES: OverridingValues = () => ({});

/** Shared empty list. It saves an allocation in `POST /event`, which is a hot path. */
const NO_PAIRS: readonly string[] = [];

/** Creates a reader of query strings. The last value of a repeated parameter is used. */
export function queryReader<S extends Type.TObject>(
  schema: S,
  overridingValues = NO_VALUES,
): Reader<Static<S>> {
  const validator = validatorOf(schema);
  const properties = schema.properties as Readonly<Record<string, { readonly type?: string }>>;
  return (request) => {
    const value: Record<string, unknown> = {};
    const setValue = (name: string, text: string) => {
      const type = Object.hasOwn(properties, name) ? properties[name]?.type : undefined;
      if (type !== undefined) value[name] = type === "integer" ? toInteger(text) : text;
    };
    const pairs = request.query === "" ? NO_PAIRS : request.query.split("&");
    for (const pair of pairs) {
      const [name, text] = splitPair(pair);
      if (text === undefined) return refuse("The query string has invalid percent-encoding");
      setValue(name, text);
    }
    for (const [name, text] of Object.entries(overridingValues(request))) setValue(name, text);
    return validate<Static<S>>(schema, validator(), value);
  };
}

/**
 * Returns a function that compiles the schema on the first call, because compiling all schemas at
 * once would slow down startup.
 */
function validatorOf(schema: TSchema): () => Validator {
  let validator: Validator | undefined;
  return () => {
    validator ??= Compile(schema) as unknown as Validator;
    return validator;
  };
}

/** A validation error, as the fields of an error reply. */
interface Problem {
  readonly code: "bad_id" | "bad_request";
  readonly message: string;
  readonly details: readonly ErrorDetail[];
}

/** Creates a function that validates a parsed JSON value. Optional fields may be `null`. */
export function valueReader<S extends TSchema>(
  schema: S,
): (value: unknown) => { readonly value: Static<S> } | { readonly problem: Problem } {
  const validator = validatorOf(schema);
  const nullRule = nullRuleOf(schema);
  return (parsed) => {
    const value = withoutNulls(nullRule, parsed, false);
    const problem = problemOf(schema, validator(), value);
    return problem === undefined ? { value: value as Static<S> } : { problem }; // checked above
  };
}

function validate<T>(schema: TSchema, validator: Validator, value: unknown): ReadResult<T> {
  const problem = problemOf(schema, validator, value);
  // The cast is safe, because the value conforms to the schema. The validator's own type is too
  // deep to pass through a generic.
  if (problem === undefined) return { value: value as T };
  const { code, ...options } = problem;
  return { refusal: errorReply(code, options) };
}

function problemOf(schema: TSchema, validator: Validator, value: unknown): Problem | undefined {
  if (validator.Check(value)) return undefined;
  const details = arrayOverLimit(schema, value) ?? explain(validator, value);
  const [first] = details;
  const isOnlyIds = details.every(
    ({ message }) => message === ID_MESSAGE || message === OPTIONAL_ID_MESSAGE,
  );
  return {
    code: isOnlyIds ? "bad_id" : "bad_request",
    message: `${first?.path || "The body"} ${first?.message ?? "is not valid"}`,
    details,
  };
}

function refuse(message: string): ReadResult<never> {
  return { refusal: errorReply("bad_request", { message }) };
}

/**
 * Returns the error details if a list exceeds its `maxItems`, otherwise `undefined`. Such a list is
 * not passed to `explain`, which could run for a second.
 */
function arrayOverLimit(
  schema: TSchema,
  value: unknown,
  path = "",
): readonly ErrorDetail[] | undefined {
  if (Type.IsArray(schema) && Array.isArray(value)) {
    const maxItems = "maxItems" in schema ? Number(schema.maxItems) : Infinity;
    return value.length > maxItems
      ? [{ path, message: `must not have more than ${maxItems} items` }]
      : undefined;
  }
  if (!Type.IsObject(schema) || typeof value !== "object" || value === null) return undefined;
  for (const [name, property] of Object.entries(schema.properties)) {
    const details = arrayOverLimit(property, Reflect.get(value, name), name);
    if (details !== undefined) return details;
  }
  return undefined;
}

const ID_MESSAGE = "must have 1 to 128 characters, no control characters and none of @ # &";
const OPTIONAL_ID_MESSAGE =
  "must have at most 128 characters, no control characters and none of @ # &";
const PATTERN_MESSAGES: ReadonlyMap<string, string> = new Map([
  [ID_PATTERN, ID_MESSAGE],
  [OPTIONAL_ID_PATTERN, OPTIONAL_ID_MESSAGE],
  [LABEL_PATTERN, "must be 1 to 128 characters long and well-formed Unicode"],
  [OPTIONAL_LABEL_PATTERN, "must be at most 128 characters long and well-formed Unicode"],
  [WELL_FORMED_PATTERN, "must be well-formed Unicode"],
]);

/** Returns the problems with a value. Never quotes the value from the request. */
function explain(validator: Validator, value: unknown): readonly ErrorDetail[] {
  const details = new Map<string, string>();
  const addDetail = (path: string, message: string) => {
    if (!details.has(path)) details.set(path, message);
  };
  for (const error of validator.Errors(value)) {
    const path = error.instancePath.slice(1).replaceAll("/", ".");
    switch (error.keyword) {
      case "required":
        for (const name of error.params.requiredProperties)
          addDetail(path === "" ? name : `${path}.${name}`, "is required");
        break;
      case "type":
        addDetail(path, typeMessage(path, String(error.params.type)));
        break;
      case "enum":
        addDetail(path, `must be one of ${error.params.allowedValues.join(", ")}`);
        break;
      case "pattern": {
        const pattern = String(error.params.pattern);
        addDetail(path, PATTERN_MESSAGES.get(pattern) ?? error.message);
        break;
      }
      default:
        addDetail(path, error.message);
    }
  }
  return [...details].map(([path, message]) => ({ path, message }));
}

function typeMessage(path: string, type: string): string {
  if (path === "payload") return "must be a string: the JSON content in standard base64";
  return `must be ${/^[aeiou]/.test(type) ? `an ${type}` : `a ${type}`}`;
}

function isJson(contentType: string): boolean {
  if (contentType === "application/json" || contentType === "") return true;
  const mediaType = contentType.split(";", 1)[0]?.trim().toLowerCase() ?? "";
  return mediaType === "application/json" || /^application\/.+\+json$/.test(mediaType);
}

function splitPair(pair: string): readonly [string, string | undefined] {
  const at = pair.indexOf("=");
  const decode = (text: string) => decodeURIComponent(text.replaceAll("+", " "));
  try {
    return at < 0 ? [decode(pair), ""] : [decode(pair.slice(0, at)), decode(pair.slice(at + 1))];
  } catch {
    return ["", undefined];
  }
}

/**
 * Returns the integer in `text`. Returns any other text unchanged, so that the schema rejects it.
 */
function toInteger(text: string): number | string {
  return /^-?\d{1,16}$/.test(text) ? Number(text) : text;
}
