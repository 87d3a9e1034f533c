// Signs outgoing requests according to Standard Webhooks: HMAC-SHA256 of the id, the time and the
// body. `verifyWebhook` in the package jindou-server verifies the signatures.

import { createHmac } from "node:crypto";

const PREFIX = "whsec_";
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;
export const MIN_SECRET_BYTES = 24;
export const MAX_SECRET_BYTES = 64;

/**
 * Returns the key in a secret of the form `whsec_<Base64>`. Returns `undefined` if the secret does
 * not have this form, or if the key's length is not allowed.
 */
export function signingKeyOf(secret: string): Buffer | undefined {
  const encoded = secret.slice(PREFIX.length);
  if (!secret.startsWith(PREFIX) || !BASE64.test(encoded)) return undefined;
  const key = Buffer.from(encoded, "base64");
  return key.length >= MIN_SECRET_BYTES && key.length <= MAX_SECRET_BYTES ? key : undefined;
}

/**
 * Returns the headers with the signature of `body`. `nowMs` is the current time in Unix
 * milliseconds.
 */
export function signedHeaders(
  keys: readonly Buffer[],
  { id, nowMs, body }: { readonly id: string; readonly nowMs: number; readonly body: string },
): Readonly<Record<string, string>> {
  const timestamp = String(Math.floor(nowMs / 1000));
  const signatures = keys.map((key) => {
    const signed = createHmac("sha256", key).update(`${id}.${timestamp}.${body}`);
    return `v1,${signed.digest("base64")}`;
  });
  return {
    "webhook-id": id,
    "webhook-timestamp": timestamp,
    "webhook-signature": signatures.join(" "),
  };
}
