// Authorizes calls: the static token, or a manager's access token with the permission. State: the
// hash of the static token, and whether the last Host is local. Compares secrets in constant time.

import { allows, type Permission } from "../broker/manager-accounts.ts";
import type { Managers } from "../broker/managers.ts";
import { hashesEqual, hashToken } from "../broker/tokens.ts";
import { isLoopback } from "../lib/address.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { errorReply } from "./errors.ts";

/**
 * What a call needs: `public` nothing; `login` not to come from a web page where no credential is
 * required (it carries its own); `credential` any valid one; `bearer` an access token in any mode;
 * or one of these permissions.
 */
export type Access = "public" | "login" | "credential" | "bearer" | readonly Permission[];

/** The reply that refuses the call; undefined admits it. */
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

/** Also where none is required, an invalid credential is 401, one without the permission 403. */
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
    return isFromPage(request) ? errorReply("forbidden", { message: NOT_FROM_PAGES }) : undefined;
  }

  async function judge(bearer: string, access: Access): Promise<HttpReply | undefined> {
    const account = await managers.authenticate(bearer);
    if (account === undefined) return unauthorized();
    if (typeof access === "string") return undefined;
    return access.some((permission) => allows(account, permission))
      ? undefined
      : errorReply("forbidden");
  }

  return (request, access) => {
    if (access === "public") return undefined;
    if (access === "login") return requiresCredential ? undefined : notFromPage(request);
    const token = access === "bearer" ? "absent" : staticTokenOf(request);
    if (token === "right") return undefined;
    const bearer = bearerToken(request);
    if (bearer !== undefined) return judge(bearer, access);
    const mayGoOn = !requiresCredential && token === "absent" && access !== "bearer";
    if (!mayGoOn) return unauthorized();
    return notFromPage(request);
  };
}

/**
 * Whether a call comes from a web page in a browser on this machine: it has an Origin, or a Host
 * that is not this machine (DNS rebinding). The user who opened the page did not mean to let it
 * manage the broker.
 */
function createPageCheck(): (request: HttpRequest) => boolean {
  let lastHost = ""; // mostly the same in every call
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

/** The token of `Authorization: Bearer <token>`; undefined without one. */
export function bearerToken(request: HttpRequest): string | undefined {
  const { authorization = "" } = request.headers;
  return /^bearer( |$)/i.test(authorization)
    ? authorization.slice("bearer".length).trim()
    : undefined;
}
