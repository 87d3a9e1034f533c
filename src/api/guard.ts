// Authorizes calls that have the static token, or the access token of a manager with the required
// permission. Secrets must be compared in constant time.

import { allows, type Permission } from "../broker/manager-accounts.ts";
import type { Managers } from "../broker/managers.ts";
import { isLoopback } from "../lib/address.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { errorReply } from "./errors.ts";
import { type GuessLimits, StaticToken } from "./static-token.ts";

/**
 * Credential that a call needs:
 *
 * - `public`: none.
 * - `login`: none, because the call itself contains a password. If the control plane requires no
 *   credential, calls from web pages of other sites are rejected.
 * - `credential`: any valid credential.
 * - `bearer`: an access token, even if the control plane requires no credential.
 * - a list: a credential with at least one of these permissions.
 */
export type Access = "public" | "login" | "credential" | "bearer" | readonly Permission[];

/** Returns true if web pages from `origin` may call the API without a credential. */
export type PageRule = (origin: string) => boolean;

/**
 * Returns an error reply, or `undefined` if the caller is authorized. Without `admitsPage`, a web
 * page that this listener does not serve needs a credential.
 */
export type Guard = (
  request: HttpRequest,
  access: Access,
  admitsPage?: PageRule,
) => HttpReply | undefined | Promise<HttpReply | undefined>;

const CREDENTIAL_NEEDED =
  "A valid credential is required: send the header Authorization: Bearer <token>, where <token> is a token from /manager/login or the static API token, or send the static API token in the header token";

const NOT_FROM_PAGES =
  "Calls without a credential are rejected if their Host header names another machine, or if they come from a web page of another origin; use the host 127.0.0.1, [::1] or localhost, or send a credential";

const NOT_THROUGH_PROXIES =
  "Calls without a credential are rejected if a proxy forwarded them, because the proxy may be reachable from other machines; send a credential, and set api.token or auth.api = required";

const PROXY_HEADERS: ReadonlySet<string> = new Set([
  "forwarded",
  "x-forwarded-for",
  "x-forwarded-host",
  "x-forwarded-proto",
  "x-real-ip",
  "via",
]);

export const CREDENTIAL_HEADERS = ["authorization", "token", "origin", "host", ...PROXY_HEADERS];

type Verdict = ReturnType<Guard>;

interface GuardedCall {
  readonly access: Access;
  /** Whether the header for the static token is absent, or contains the right or a wrong token. */
  readonly token: "absent" | "right" | "wrong";
  readonly admitsPage?: PageRule | undefined;
}

/**
 * Creates a guard that rejects invalid or insufficient credentials even if the control plane
 * requires no credential.
 */
export function createGuard(options: {
  readonly managers: Pick<Managers, "authenticate">;
  readonly staticToken: string;
  readonly guessLimits: GuessLimits;
  readonly requiresCredential: boolean;
}): Guard {
  const { managers, requiresCredential } = options;
  const isFromPage = createPageCheck();
  const staticToken = new StaticToken(options.staticToken, options.guessLimits);

  function staticTokenOf(request: HttpRequest): "absent" | "right" | "wrong" {
    const { token = "" } = request.headers;
    if (!staticToken.exists || token === "") return "absent";
    return staticToken.isRight(token) ? "right" : "wrong";
  }

  function refusePage(request: HttpRequest, admitsPage?: PageRule): HttpReply | undefined {
    return isFromPage(request, admitsPage)
      ? errorReply("forbidden", { message: NOT_FROM_PAGES })
      : undefined;
  }

  async function authorizeBearer(
    request: HttpRequest,
    bearer: string,
    access: Access,
  ): Promise<HttpReply | undefined> {
    if (staticToken.exists) void request.remoteAddress; // must be read before the first await
    const account = await managers.authenticate(bearer);
    if (account === undefined) {
      if (access !== "bearer" && staticToken.isGuess(bearer))
        await staticToken.attempt(request, false);
      return unauthorized();
    }
    if (typeof access === "string") return undefined;
    return access.some((permission) => allows(account, permission))
      ? undefined
      : errorReply("forbidden");
  }

  return (request, access, admitsPage) => {
    if (access === "public") return undefined;
    if (access === "login") return requiresCredential ? undefined : refusePage(request);
    const token = access === "bearer" ? "absent" : staticTokenOf(request);
    if (token === "absent") return judge(request, { access, token, admitsPage });
    const turn = staticToken.attempt(request, token === "right");
    if (turn !== undefined) return turn.then(() => judge(request, { access, token }));
    return judge(request, { access, token });
  };

  function judge(request: HttpRequest, { access, token, admitsPage }: GuardedCall): Verdict {
    if (token === "right") return undefined;
    const bearer = bearerToken(request);
    if (bearer !== undefined) {
      if (access === "bearer" || !staticToken.isRight(bearer))
        return authorizeBearer(request, bearer, access);
      return staticToken.attempt(request, true)?.then(() => undefined);
    }
    const isAnonymousAllowed = !requiresCredential && token === "absent" && access !== "bearer";
    if (!isAnonymousAllowed) return unauthorized();
    if (isForwarded(request)) return errorReply("forbidden", { message: NOT_THROUGH_PROXIES });
    return refusePage(request, admitsPage);
  }
}

function isForwarded(request: HttpRequest): boolean {
  if (request.isProxied) return true;
  // Most requests have few headers, so a loop over them is faster than six lookups.
  for (const name in request.headers)
    if (PROXY_HEADERS.has(name) && request.headers[name] !== "") return true;
  return false;
}

/**
 * Creates a function that returns true for a call from a web page whose origin is neither this
 * listener's own nor allowed by `admitsPage`, and for a call whose Host header names another
 * machine. Without this check, a page from another site could control the broker through a browser
 * on this machine. Such a page can send a POST, or a GET whose reply it can read, only with an
 * Origin header or with a Host header that names another machine (DNS rebinding).
 */
function createPageCheck(): (request: HttpRequest, admitsPage?: PageRule) => boolean {
  let lastHost = ""; // most calls have the same Host
  let isLastLocal = false;
  return ({ headers }, admitsPage) => {
    const { origin = "", host = "" } = headers;
    if (origin !== "" && admitsPage?.(origin) !== true) return !isOwnPage(origin, host);
    if (host === lastHost) return !isLastLocal;
    const name = host.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1");
    lastHost = host;
    isLastLocal = isLoopback(name);
    return !isLastLocal;
  };
}

const LOCAL_HOST = /^(127\.0\.0\.1|\[::1\]|localhost)(:\d+)?$/;

/**
 * Returns true if the origin is this listener's own and its host name can only mean this machine.
 */
function isOwnPage(origin: string, host: string): boolean {
  return LOCAL_HOST.test(host) && (origin === `http://${host}` || origin === `https://${host}`);
}

function unauthorized(): HttpReply {
  return errorReply("unauthorized", { message: CREDENTIAL_NEEDED });
}

export function bearerToken(request: HttpRequest): string | undefined {
  const { authorization = "" } = request.headers;
  return /^bearer( |$)/i.test(authorization)
    ? authorization.slice("bearer".length).trim()
    : undefined;
}
