// Decides whether calls need a credential, and whether the process may start. In protected mode,
// calls need no credential, because only this machine can reach the API. All functions are pure.

/**
 * Returns true if calls need a credential. Manager accounts alone do not make a credential
 * necessary.
 */
export function credentialRule(facts: {
  readonly listensBeyondLoopback: boolean;
  readonly staticToken: string;
  readonly authApi: "auto" | "required";
}): boolean {
  return facts.listensBeyondLoopback || facts.staticToken !== "" || facts.authApi === "required";
}

/** Minimum length of the static token if other machines can reach the API and guess the token. */
const MIN_TOKEN_LENGTH = 16;

/**
 * Returns the reason why the process must not start and the settings to change, or `undefined` if
 * it may start.
 */
export function refusalToStart(facts: {
  readonly listensBeyondLoopback: boolean;
  readonly staticToken: string;
  readonly adminPassword: string;
  readonly managers: number;
}): string | undefined {
  const hasCredential =
    facts.staticToken !== "" || facts.adminPassword !== "" || facts.managers > 0;
  if (!facts.listensBeyondLoopback) return undefined;
  if (facts.staticToken !== "" && facts.staticToken.length < MIN_TOKEN_LENGTH)
    return (
      `api.token (JINDOU_API_TOKEN) has fewer than ${MIN_TOKEN_LENGTH} characters, but the HTTP API is reachable from other machines, which could guess the token. ` +
      "Set a random token (openssl rand -base64 24), or use the host 127.0.0.1 in api.listen and api.compatListen."
    );
  if (hasCredential) return undefined;
  return (
    "The HTTP API would be reachable from other machines without a configured credential. " +
    "Set api.token (JINDOU_API_TOKEN), admin.password (JINDOU_ADMIN_PASSWORD) or managers, or use the host 127.0.0.1 in api.listen and api.compatListen."
  );
}

/**
 * Returns the reason why clients must not connect without authentication, or `undefined` if there
 * is no reason.
 */
export function refusalOfOpenClients(facts: {
  readonly listensBeyondLoopback: boolean;
  readonly authClients: string;
  readonly allowedOrigins: readonly string[];
}): string | undefined {
  const { listensBeyondLoopback, authClients, allowedOrigins } = facts;
  if (authClients !== "none" || !listensBeyondLoopback || allowedOrigins.length > 0)
    return undefined;
  return (
    "auth.clients is none, so any web page that a person opens in this network could connect as any user. " +
    "Set client.allowedOrigins (JINDOU_CLIENT_ALLOWED_ORIGINS) to the origins of your own pages, or set client.listen (JINDOU_CLIENT_LISTEN) to 127.0.0.1:5200."
  );
}
