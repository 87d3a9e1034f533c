// Reads a request's JSON body or query string into a checked value, or into the reply that refuses
// it. State: compiled validators. A hostile body never costs more than reading it once.

import { type Static, type TSchema, Type } from "typebox";
import { Compile, type Validator } from "typebox/compile";
import type { ErrorDetail } from "../broker/errors.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { edgeReply, errorReply } from "./errors.ts";
import {
  ID_PATTERN,
  LABEL_PATTERN,
  OPTIONAL_ID_PATTERN,
  OPTIONAL_LABEL_PATTERN,
} from "./fields.ts";

/**
 * A checked value, or the reply that refuses it. `ignored`: the body's fields unknown to the
 * schema.
 */
export type Read<T> =
  | { readonly value: T; readonly ignored?: string | undefined }
  | { readonly refused: HttpReply };
export type Reader<T> = (request: HttpRequest, adapt?: Adapt) => Read<T>;

/** A parsed JSON body as the schemas of the table describe it. */
export type Adapt = (body: unknown) => unknown;

/** A check before the schema's: the reply that refuses the body, or undefined. */
export type BodyCheck = (body: unknown) => HttpReply | undefined;

/** A byte order mark stays, so that JSON.parse refuses it. */
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** A reader of JSON bodies: content type, UTF-8, JSON, `adapt`, `first`, then the schema. */
export function jsonReader<S extends TSchema>(schema: S, first?: BodyCheck): Reader<Static<S>> {
  const validator = Compile(schema) as unknown as Validator;
  const fields = fieldsOf(schema);
  return (request, adapt) => {
    if (!isJson(request.headers["content-type"] ?? ""))
      return { refused: edgeReply("unsupported_media_type") };
    let text: string;
    try {
      text = utf8.decode(request.body);
    } catch {
      return refuse("The body is not valid UTF-8");
    }
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      return refuse("The body is not valid JSON"); // the parser's message would echo the body
    }
    if (adapt !== undefined) value = adapt(value);
    const refused = first?.(value);
    if (refused !== undefined) return { refused };
    const checked = check<Static<S>>(schema, validator, value);
    if ("refused" in checked) return checked;
    const ignored = ignoredFields(fields, value);
    return ignored === undefined ? checked : { ...checked, ignored };
  };
}

const MAX_IGNORED = 8;
/** Field names that are safe in a header; others are only counted. */
const HEADER_SAFE = /^[\w.-]{1,64}$/;

/** A schema's fields, with those of nested objects; null: not an object. */
type Fields = ReadonlyMap<string, Fields | null>;

function fieldsOf(schema: TSchema): Fields | null {
  if (!Type.IsObject(schema)) return null;
  const properties = Object.entries(schema.properties);
  return new Map(properties.map(([name, inner]) => [name, fieldsOf(inner)]));
}

/** The fields of a checked `value` unknown to its schema, as a header's value; undefined: none. */
function ignoredFields(fields: Fields | null, value: unknown): string | undefined {
  const found: string[] = [];
  if (fields !== null) collectIgnored(fields, value as object, "", found);
  if (found.length === 0) return undefined;
  const names = found.filter((name) => HEADER_SAFE.test(name)).slice(0, MAX_IGNORED);
  const more = found.length - names.length;
  return [...names, ...(more > 0 ? [`${more} more`] : [])].join(", ");
}

function collectIgnored(fields: Fields, value: object, path: string, found: string[]): void {
  for (const name in value) {
    const inner = fields.get(name);
    if (inner === undefined) found.push(path + name);
    else if (inner !== null)
      collectIgnored(inner, Reflect.get(value, name), `${path}${name}.`, found);
  }
}

/** Values from elsewhere in the request, which override those of the query string. */
type MoreValues = (request: HttpRequest) => Readonly<Record<string, string>>;

const NO_VALUES: MoreValues = () => ({});

/** POST /event, which is hot, has no query as a rule. */
const NO_PAIRS: readonly string[] = [];

/**
 * A reader of query strings: the schema's parameters, integers as numbers; the last of equal names.
 */
export function queryReader<S extends Type.TObject>(
  schema: S,
  more = NO_VALUES,
): Reader<Static<S>> {
  const validator = Compile(schema) as unknown as Validator;
  const properties = schema.properties as Readonly<Record<string, { readonly type?: string }>>;
  return (request) => {
    const value: Record<string, unknown> = {};
    const take = (name: string, text: string) => {
      const type = Object.hasOwn(properties, name) ? properties[name]?.type : undefined;
      if (type !== undefined) value[name] = type === "integer" ? toInteger(text) : text;
    };
    const pairs = request.query === "" ? NO_PAIRS : request.query.split("&");
    for (const pair of pairs) {
      const [name, text] = splitPair(pair);
      if (text === undefined) return refuse("The query string is not valid percent-encoding");
      take(name, text);
    }
    for (const [name, text] of Object.entries(more(request))) take(name, text);
    return check<Static<S>>(schema, validator, value);
  };
}

function check<T>(schema: TSchema, validator: Validator, value: unknown): Read<T> {
  // The check proves the cast; the validator's own type is too deep to pass through a generic.
  if (validator.Check(value)) return { value: value as T };
  const details = tooLong(schema, value) ?? explain(validator, value);
  const [first] = details;
  const isOnlyIds = details.every(
    ({ message }) => message === ID_MESSAGE || message === OPTIONAL_ID_MESSAGE,
  );
  return {
    refused: errorReply(isOnlyIds ? "bad_id" : "bad_request", {
      message: `${first?.path || "The body"} ${first?.message ?? "is not valid"}`,
      details,
    }),
  };
}

function refuse(message: string): Read<never> {
  return { refused: errorReply("bad_request", { message }) };
}

/**
 * Arrays over their limit, found without their items: explaining 500,000 bad items takes a second.
 */
function tooLong(schema: TSchema, value: unknown, path = ""): readonly ErrorDetail[] | undefined {
  if (Type.IsArray(schema) && Array.isArray(value)) {
    const maxItems = "maxItems" in schema ? Number(schema.maxItems) : Infinity;
    return value.length > maxItems
      ? [{ path, message: `must not have more than ${maxItems} items` }]
      : undefined;
  }
  if (!Type.IsObject(schema) || typeof value !== "object" || value === null) return undefined;
  for (const [name, property] of Object.entries(schema.properties)) {
    const found = tooLong(property, Reflect.get(value, name), name);
    if (found !== undefined) return found;
  }
  return undefined;
}

const ID_MESSAGE = "must have 1 to 128 characters, no control characters and none of @ # &";
const OPTIONAL_ID_MESSAGE =
  "must have at most 128 characters, no control characters and none of @ # &";
const PATTERN_MESSAGES: ReadonlyMap<string, string> = new Map([
  [ID_PATTERN, ID_MESSAGE],
  [OPTIONAL_ID_PATTERN, OPTIONAL_ID_MESSAGE],
  [LABEL_PATTERN, "must have 1 to 128 characters"],
  [OPTIONAL_LABEL_PATTERN, "must have at most 128 characters"],
]);

/** The first wrong places, one sentence each: the expected value, never the one sent. */
function explain(validator: Validator, value: unknown): readonly ErrorDetail[] {
  const details = new Map<string, string>();
  const note = (path: string, message: string) => {
    if (!details.has(path)) details.set(path, message);
  };
  for (const error of validator.Errors(value)) {
    const path = error.instancePath.slice(1).replaceAll("/", ".");
    switch (error.keyword) {
      case "required":
        for (const name of error.params.requiredProperties)
          note(path === "" ? name : `${path}.${name}`, "is required");
        break;
      case "type":
        note(path, `must be ${withArticle(String(error.params.type))}`);
        break;
      case "enum":
        note(path, `must be one of ${error.params.allowedValues.join(", ")}`);
        break;
      case "pattern": {
        const pattern = String(error.params.pattern);
        note(path, PATTERN_MESSAGES.get(pattern) ?? error.message);
        break;
      }
      default:
        note(path, error.message);
    }
  }
  return [...details].map(([path, message]) => ({ path, message }));
}

function withArticle(type: string): string {
  return /^[aeiou]/.test(type) ? `an ${type}` : `a ${type}`;
}

/** A missing content type is accepted [decisions: Other statuses]. */
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

/** The number; text that is no number is returned as it is, and the schema refuses it. */
function toInteger(text: string): number | string {
  return /^-?\d{1,16}$/.test(text) ? Number(text) : text;
}
