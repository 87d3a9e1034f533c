// Verifies webhooks that are signed according to Standard Webhooks: HMAC-SHA256 of the id, the time
// and the body. During a secret rotation, the signature header has one signature for each secret.

import { createHmac, timingSafeEqual } from "node:crypto";

type HeaderValue = string | readonly string[] | undefined;

/** Request headers: a `Headers` object, or the headers object of `node:http`. */
export type WebhookHeaders =
  | { get(name: string): string | null }
  | Readonly<Record<string, HeaderValue>>;

export interface VerifyOptions {
  /**
   * Maximum difference between the webhook's time and the current time, in seconds. Default: 300.
   */
  readonly toleranceS?: number | undefined;
  /** Current time in Unix milliseconds. Default: the system clock. */
  readonly nowMs?: number | undefined;
}

/** Error for a webhook that must not be trusted, or whose body is not JSON. */
export class WebhookError extends Error {
  readonly code: "missing_header" | "bad_timestamp" | "bad_signature" | "bad_body";

  constructor(code: WebhookError["code"], message: string) {
    super(message);
    this.name = "WebhookError";
    this.code = code;
  }
}

const SECRET_PREFIX = "whsec_";
const VERSION = "v1";

/**
 * Verifies a webhook and returns its parsed body. `body` must be exactly the body that was
 * received, because JSON that was parsed and serialized again may have a different signature.
 * `secrets` is one secret (`whsec_…`) or, during a rotation, several. Throws `WebhookError`, or
 * `TypeError` if a secret is invalid.
 */
export function verifyWebhook(
  body: string | Uint8Array,
  headers: WebhookHeaders,
  secrets: string | readonly string[],
  { toleranceS = 300, nowMs = Date.now() }: VerifyOptions = {},
): unknown {
  const id = headerOf(headers, "webhook-id");
  const timestamp = headerOf(headers, "webhook-timestamp");
  const signatures = headerOf(headers, "webhook-signature").split(" ");
  const sentS = /^\d{1,12}$/.test(timestamp) ? Number(timestamp) : Number.NaN;
  if (!(Math.abs(nowMs / 1000 - sentS) <= toleranceS))
    throw new WebhookError(
      "bad_timestamp",
      "The webhook's timestamp is not valid or too far from the current time. Check this machine's clock.",
    );
  const keys = (typeof secrets === "string" ? [secrets] : secrets).map(keyOf);
  const isSigned = keys.some((key) => {
    const signed = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
    return signatures.some((signature) => isEqual(signature, signed));
  });
  if (!isSigned)
    throw new WebhookError(
      "bad_signature",
      "No signature matches. Check the secret, and pass the body exactly as it was received, byte for byte.",
    );
  try {
    return JSON.parse(typeof body === "string" ? body : new TextDecoder().decode(body));
  } catch {
    throw new WebhookError("bad_body", "The body is not JSON.");
  }
}

/** Compares a signature from the header in constant time. */
function isEqual(signature: string, expected: Buffer): boolean {
  const [version, encoded = ""] = signature.split(",");
  const bytes = Buffer.from(encoded, "base64");
  return (
    version === VERSION && bytes.length === expected.length && timingSafeEqual(bytes, expected)
  );
}

function keyOf(secret: string): Buffer {
  const key = Buffer.from(secret.slice(SECRET_PREFIX.length), "base64");
  if (!secret.startsWith(SECRET_PREFIX) || key.length === 0)
    throw new TypeError("A webhook secret must be whsec_ followed by Base64");
  return key;
}

function headerOf(headers: WebhookHeaders, name: string): string {
  const { get } = headers;
  const value: unknown =
    typeof get === "function"
      ? get.call(headers, name)
      : (headers as Record<string, unknown>)[name];
  const [first] = Array.isArray(value) ? value : [value];
  if (typeof first === "string" && first !== "") return first;
  throw new WebhookError("missing_header", `The ${name} header is missing.`);
}
