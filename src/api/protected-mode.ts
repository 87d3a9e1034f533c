// Protected mode: when calls need a credential, and when the process must not start [decisions: Who
// needs it]. Pure.

/**
 * Calls need a credential if the API is reachable beyond this machine, a static token is set, or
 * the configuration says so. Manager accounts alone do not matter.
 */
export function credentialRule(facts: {
  readonly listensBeyondLoopback: boolean;
  /** "" = none. */
  readonly staticToken: string;
  readonly authApi: "auto" | "required";
}): boolean {
  return facts.listensBeyondLoopback || facts.staticToken !== "" || facts.authApi === "required";
}

/** The reason why the process must not start, with the keys to set; undefined: it may. */
export function refusalToStart(facts: {
  readonly listensBeyondLoopback: boolean;
  readonly staticToken: string;
  readonly adminPassword: string;
  /** How many manager accounts are configured. */
  readonly managers: number;
}): string | undefined {
  const hasCredential =
    facts.staticToken !== "" || facts.adminPassword !== "" || facts.managers > 0;
  if (!facts.listensBeyondLoopback || hasCredential) return undefined;
  return (
    "The HTTP API would be reachable from other machines without a configured credential. " +
    "Set api.token (JINDOU_API_TOKEN), admin.password (JINDOU_ADMIN_PASSWORD) or managers, or set api.listen to 127.0.0.1."
  );
}
