// Who may make a call: the static token, or a manager's access token with the permission. State: the static token's hash, and
// what was found of the last Host.
// Never compares a secret in a time that tells how much of it was right.

import { allows, type Permission } from "../broker/manager-accounts.ts";
import type { Managers } from "../broker/managers.ts";
import { hashesEqual, hashToken } from "../broker/tokens.ts";
import { isLoopback } from "../lib/address.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { errorReply } from "./errors.ts";

/**
 * What a call needs: nothing; only to come from no web page where no credential is required (a login carries its own); any valid credential; an
 * access token in any mode; or one of these permissions.
 */
export type Access =
  | "public"
  | "login"
  | "credential"
  | "bearer"
  | readonly Permission[];

/** The reply that refuses the call, or undefined: go on. */
export type Guard = (
  request: HttpRequest,
  access: Access,
) => HttpReply | undefined | Promise<HttpReply | undefined>;

const NEEDED =
  "A valid credential is needed: Authorization: Bearer <token from /manager/login>, or the static token in the header token";

const NOT_FROM_PAGES =
  "Without a credential, web pages and foreign host names are refused: call 127.0.0.1 or localhost, or present a credential";

/** Request headers that `createGuard` reads. */
export const CREDENTIAL_HEADERS = ["authorization", "token", "origin", "host"];

/**
 * Where no credential is required, one that is presented must still be right: 401 for an invalid one, 403 for one without the permission.
 */
export function createGuard(parts: {
  readonly managers: Pick<Managers, "authenticate">;
  /** "" = none. */
  readonly staticToken: string;
  readonly requiresCredential: boolean;
}): Guard {
  const { managers, staticToken, requiresCredential } = parts;
  const isFromPage = createPageCheck();
  const expected = staticToken === "" ? undefined : hashToken(staticToken);

  function staticTokenOf(request: HttpRequest): "absent" | "right" | "wrong" {
    const { token = "" } = request.headers;
    if (expected === undefined || token === "") return "absent";
    // Hashing first makes the lengths equal.
    return hashesEqual(hashToken(token), expected) ? "right" : "wrong";
  }

  function notFromPage(request: HttpRequest): HttpReply | undefined {
    return isFromPage(request)
      ? errorReply("forbidden", { message: NOT_FROM_PAGES })
      : undefined;
  }

  async function judge(
    bearer: string,
    access: Access,
  ): Promise<HttpReply | undefined> {
    const account = await managers.authenticate(bearer);
    if (account === undefined) return unauthorized();
    if (typeof access === "string") return undefined;
    return access.some((permission) => allows(account, permission))
      ? undefined
      : errorReply("forbidden");
  }

  return (request, access) => {
    if (access === "public") return undefined;
    if (access === "login")
      return requiresCredential ? undefined : notFromPage(request);
    const token = access === "bearer" ? "absent" : staticTokenOf(request);
    if (token === "right") return undefined;
    const bearer = bearerToken(request);
    if (bearer !== undefined) return judge(bearer, access);
    const mayGoOn =
      !requiresCredential && token === "absent" && access !== "bearer";
    if (!mayGoOn) return unauthorized();
    return notFromPage(request);
  };
}

/**
 * A page in a browser on this machine: it sends its origin, or (a name rebound to this machine) a host that is not this machine. Whoever
 * opened it did not mean to let it manage the broker.
 */
function createPageCheck(): (request: HttpRequest) => boolean {
  let lastHost = ""; // callers mostly name the same one
  let isLastLocal = false;
  return ({ headers }) => {
    const { origin = "", host = "" } = headers;
    if (origin !== "") return true;
    if (host === lastHost) return !isLastLocal;
    const name = host.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1");
    lastHost = host;
    isLastLocal = isLoopback(name);
    return !isLastLocal;
  };
}

function unauthorized(): HttpReply {
  return errorReply("unauthorized", { message: NEEDED });
}

/** The access token of `Authorization: Bearer <token>`; undefined where the header is absent or of another scheme. */
export function bearerToken(request: HttpRequest): string | undefined {
  const { authorization = "" } = request.headers;
  return /^bearer( |$)/i.test(authorization)
    ? authorization.slice("bearer".length).trim()
    : undefined;
}
