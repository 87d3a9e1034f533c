// Reads and checks a request's params field by field. Throws only FrameError, with the request's
// ref. A field that is null is treated as missing, and unknown fields are ignored.

import { Buffer } from "node:buffer";
import { ERRORS, type ErrorCode } from "../../broker/errors.ts";
import {
  type ChannelRef,
  GROUP_CHANNEL,
  isId,
  isWellFormed,
  MAX_ID_LENGTH,
  PERSON_CHANNEL,
} from "../../broker/model.ts";
import { fieldText } from "../../lib/json-field.ts";
import { FrameError, type Ref } from "../protocol.ts";

/** Maximum nesting depth of an object payload. Clients' parsers overflow at large depths. */
const MAX_DEPTH = 100;

export type JsonObject = Readonly<Record<string, unknown>>;

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export class Params {
  readonly ref: Ref;
  readonly #fields: JsonObject;
  readonly #request: string;

  /** `request` is the text of the whole request. `payload` reads the payload from it. */
  constructor(fields: JsonObject, ref: Ref, request = "{}") {
    this.#fields = fields;
    this.ref = ref;
    this.#request = request;
  }

  refusal(code: ErrorCode, message: string): FrameError {
    return new FrameError(code, this.ref, message);
  }

  has(name: string): boolean {
    return (this.#fields[name] ?? undefined) !== undefined;
  }

  /**
   * Reads an integer from 0 to `max`. A missing field has the value `absent`. Without `absent`, a
   * missing field is an error.
   */
  uint(name: string, max = Number.MAX_SAFE_INTEGER, absent?: number | undefined): number {
    const value = this.#value(name) ?? absent;
    if (isUint(value, max)) return value;
    throw this.#mismatch(name, `an integer from 0 to ${max}`);
  }

  bool(name: string, absent = false): boolean {
    const value = this.#value(name) ?? absent;
    if (typeof value === "boolean") return value;
    throw this.#mismatch(name, "true or false");
  }

  /** Reads a string of at most `max` UTF-16 code units. A missing field is handled as in `uint`. */
  text(name: string, max: number, absent?: string): string {
    const value = this.#value(name) ?? absent;
    if (typeof value !== "string") throw this.#mismatch(name, "a string");
    if (value.length > max) throw this.refusal("bad_request", `${name} exceeds ${max} characters`);
    if (!isWellFormed(value)) throw this.refusal("bad_request", `${name} is not valid Unicode`);
    return value;
  }

  id(name: string): string {
    return this.#id(this.#value(name), name);
  }

  optionalId(name: string): string {
    const value = this.#value(name) ?? "";
    return value === "" ? "" : this.#id(value, name);
  }

  ids(name: string, max: number): readonly string[] {
    return this.#list(name, max).map((id) => this.#id(id, `each of ${name}`));
  }

  uints(name: string, max: number): readonly number[] {
    const values = this.#list(name, max);
    if (values.every((value) => isUint(value))) return values;
    throw this.#mismatch(name, "a list of unsigned integers");
  }

  /**
   * Reads an optional string of at most 128 characters. Returns `undefined` if it is missing or
   * empty.
   */
  label(name: string): string | undefined {
    return this.text(name, MAX_ID_LENGTH, "") || undefined;
  }

  name(name: string): string {
    const value = this.text(name, MAX_ID_LENGTH);
    if (value !== "") return value;
    throw this.refusal("bad_request", `${name} must not be empty`);
  }

  limit(max: number): number {
    const limit = this.#value("limit");
    if (isUint(limit, max) && limit > 0) return limit;
    throw this.#mismatch("limit", `an integer from 1 to ${max}`);
  }

  channel(): ChannelRef {
    const type = this.uint("channelType");
    if (type !== PERSON_CHANNEL && type !== GROUP_CHANNEL)
      throw this.#mismatch("channelType", "1 (personal) or 2 (group)");
    return { type, id: this.id("channelId") };
  }

  object(name: string): Params {
    const value = this.#value(name) ?? {};
    if (isJsonObject(value)) return new Params(value, this.ref);
    throw this.#mismatch(name, "an object");
  }

  objects(name: string, max: number): readonly Params[] {
    if (!this.has(name)) return [];
    return this.#list(name, max).map((value) => {
      if (isJsonObject(value)) return new Params(value, this.ref);
      throw this.#mismatch(name, "a list of objects");
    });
  }

  /**
   * Reads a message id. Returns 0 if the number in the string is too large to be an id from this
   * broker.
   */
  messageId(): number {
    const value = this.#value("messageId");
    if (isUint(value)) return value;
    if (typeof value === "string" && /^\d{1,20}$/.test(value)) {
      const id = Number(value);
      return Number.isSafeInteger(id) ? id : 0;
    }
    throw this.#mismatch("messageId", "an unsigned integer or a string of digits");
  }

  /**
   * Reads the payload. If it is an object, returns its text unchanged [decisions: A payload's
   * text].
   */
  payload(maxBytes: number): Uint8Array {
    const value = this.#value("payload");
    const bytes =
      typeof value === "string" ? this.#base64(value, maxBytes) : this.#objectText(value);
    if (bytes.length <= maxBytes) return bytes;
    throw this.#tooLarge(maxBytes);
  }

  #base64(text: string, maxBytes: number): Uint8Array {
    if (text.length > Math.ceil(maxBytes / 3) * 4) throw this.#tooLarge(maxBytes);
    const bytes = Buffer.from(text, "base64");
    // the comparison fails if `Buffer.from` skipped invalid characters
    if (bytes.toString("base64") === text) return new Uint8Array(bytes);
    throw this.#mismatch("payload", "standard base64, or an object");
  }

  #objectText(value: unknown): Uint8Array {
    const params = isJsonObject(value) ? fieldText(this.#request, "params") : undefined;
    const payload = params && fieldText(params.text, "payload");
    if (payload === undefined || payload.depth > MAX_DEPTH)
      throw this.#mismatch("payload", `base64, or an object of at most ${MAX_DEPTH} levels`);
    return new Uint8Array(Buffer.from(payload.text));
  }

  #tooLarge(maxBytes: number): FrameError {
    return this.refusal("too_large", `payload exceeds ${maxBytes} bytes`);
  }

  #id(value: unknown, name: string): string {
    if (typeof value !== "string") throw this.#mismatch(name, "a string");
    if (isId(value)) return value;
    throw this.refusal("bad_id", `${name}: ${ERRORS.bad_id.message}`);
  }

  #list(name: string, max: number): readonly unknown[] {
    const value = this.#value(name);
    if (!Array.isArray(value)) throw this.#mismatch(name, "a list");
    if (value.length <= max) return value;
    throw this.refusal("too_large", `${name} exceeds ${max} entries`);
  }

  #value(name: string): unknown {
    return this.#fields[name] ?? undefined;
  }

  #mismatch(name: string, expected: string): FrameError {
    return this.refusal("bad_request", `${name} must be ${expected}`);
  }
}

function isUint(value: unknown, max = Number.MAX_SAFE_INTEGER): value is number {
  return Number.isSafeInteger(value) && Number(value) >= 0 && Number(value) <= max;
}
