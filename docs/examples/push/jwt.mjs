// Makes the tokens with which a backend proves to a push service who it is.

import { sign } from "node:crypto";

const REUSE_MS = 1_800_000; // push services accept a token for an hour
const base64 = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

export function signedToken(header, claims, key) {
  const content = `${base64(header)}.${base64(claims)}`;
  const signature = sign("sha256", Buffer.from(content), { key, dsaEncoding: "ieee-p1363" });
  return `${content}.${signature.toString("base64url")}`;
}

/** Returns a function that returns the same token for half an hour. `create` gets the time in seconds. */
export function reused(create) {
  let token;
  let createdMs = Number.NEGATIVE_INFINITY;
  return async () => {
    if (Date.now() - createdMs < REUSE_MS) return token;
    token = await create(Math.floor(Date.now() / 1000));
    createdMs = Date.now();
    return token;
  };
}
