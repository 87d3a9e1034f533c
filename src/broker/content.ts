// Reads the `type` of a payload and, with `strict` validation, checks the fields of the known types
// [spec: Message payload content; decisions: payload].

import { integerField, integerFieldProblem } from "../lib/json-scan.ts";
import { BrokerError } from "./errors.ts";

export type ContentValidation = "json" | "strict" | "opaque";

export const COMMAND_TYPE = 99;

type Content = Readonly<Record<string, unknown>>;
type Field = readonly [name: string, is: (value: unknown) => boolean];

const isString = (value: unknown): boolean => typeof value === "string";
const isInteger = (value: unknown): boolean => Number.isInteger(value);
const isObject = (value: unknown): value is Content =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isUids = (value: unknown): boolean => Array.isArray(value) && value.every(isString);
const optional =
  (is: (value: unknown) => boolean) =>
  (value: unknown): boolean =>
    value === undefined || is(value);

const PICTURE: readonly Field[] = [
  ["url", isString],
  ["width", isInteger],
  ["height", isInteger],
];

const SYSTEM: readonly Field[] = [
  ["content", isString],
  ["extra", optional(isNamedUsers)],
];

const KNOWN_TYPES: ReadonlyMap<number, readonly Field[]> = new Map([
  [
    1,
    [
      ["content", isString],
      ["mention", optional(isMention)],
      ["reply", optional(isReply)],
    ],
  ],
  [2, PICTURE],
  [3, PICTURE],
  [
    4,
    [
      ["url", isString],
      ["timeTrad", isInteger],
    ],
  ],
  [
    8,
    [
      ["url", isString],
      ["name", isString],
      ["size", isInteger],
    ],
  ],
  [
    COMMAND_TYPE,
    [
      ["cmd", isString],
      ["param", isObject],
    ],
  ],
]);

function isNamedUsers(value: unknown): boolean {
  return (
    Array.isArray(value) &&
    value.every((user) => isObject(user) && isString(user.uid) && isString(user.name))
  );
}

function isMention(value: unknown): boolean {
  if (!isObject(value)) return false;
  if (value.all === 1) return value.uids === undefined || isEmpty(value.uids);
  return (value.all === undefined || value.all === 0) && optional(isUids)(value.uids);
}

function isEmpty(value: unknown): boolean {
  return Array.isArray(value) && value.length === 0;
}

function isReply(value: unknown): boolean {
  return (
    isObject(value) &&
    isString(value.root_mid) &&
    isString(value.message_id) &&
    isInteger(value.message_seq) &&
    isString(value.from_uid) &&
    isString(value.from_name) &&
    isObject(value.payload)
  );
}

export interface ContentRules {
  readonly maxPayloadBytes: number;
  readonly contentValidation: ContentValidation;
}

const decoder = new TextDecoder();

/** Checks a payload and returns its `type`. Throws `too_large` or `bad_payload`. */
export function checkPayload(payload: Uint8Array, rules: ContentRules): number {
  const { maxPayloadBytes, contentValidation } = rules;
  if (payload.length > maxPayloadBytes)
    throw new BrokerError("too_large", {
      message: `payload must be at most ${maxPayloadBytes} bytes long`,
      details: [{ path: "payload", message: "is too large" }],
    });
  return contentType(payload, contentValidation);
}

/**
 * Returns the payload's `type`, or 0 if the payload has no integer `type`. Throws `bad_payload` if
 * the payload fails `validation`.
 */
export function contentType(payload: Uint8Array, validation: ContentValidation): number {
  const type = integerField(payload, "type");
  if (type === undefined) {
    if (validation === "opaque") return 0;
    throw refusalOf(payload);
  }
  if (validation === "strict") checkFields(payload, type);
  return type;
}

const PROBLEMS = {
  empty: "payload is empty",
  not_utf8: "payload is not valid UTF-8",
  not_json: "payload is not valid JSON",
  not_object: "payload is JSON, but not an object",
  absent: 'payload has no field "type"',
  not_integer: 'The field "type" of payload is not an integer',
} as const satisfies Record<ReturnType<typeof integerFieldProblem>, string>;

const REMEDY = 'payload must be a JSON object whose field "type" is an integer';

const BASE64_OF_OBJECT = "eyJ";

function refusalOf(payload: Uint8Array): BrokerError {
  const problem = PROBLEMS[integerFieldProblem(payload, "type")];
  const isEncodedTwice = decoder.decode(payload.subarray(0, 3)) === BASE64_OF_OBJECT;
  const message = isEncodedTwice
    ? "payload was encoded twice: decoding it yields base64 again; encode the JSON object only once"
    : `${problem}; ${REMEDY}`;
  return new BrokerError("bad_payload", { message });
}

function checkFields(payload: Uint8Array, type: number): void {
  const fields = type > 1000 ? SYSTEM : KNOWN_TYPES.get(type);
  if (fields === undefined) return;
  // `integerField` has already checked that the payload is an object.
  const content: Content = JSON.parse(decoder.decode(payload));
  for (const [name, is] of fields)
    if (!is(content[name]))
      throw new BrokerError("bad_payload", {
        message: `payload.${name} is missing or has the wrong type; see the fields of type ${type}`,
        details: [{ path: `payload.${name}`, message: "is missing or has the wrong type" }],
      });
}
