// Protected mode: when calls need a credential, and when the process must not start at all [decisions: Who needs it]. Pure.

/**
 * Whether calls need a credential: as soon as others than this machine can reach the API, or a static token is set, or the configuration
 * says so. Whether manager accounts exist does not matter.
 */
export function credentialRule(facts: {
  readonly listensBeyondLoopback: boolean;
  /** "" = none. */
  readonly staticToken: string;
  readonly authApi: "auto" | "required";
}): boolean {
  return (
    facts.listensBeyondLoopback ||
    facts.staticToken !== "" ||
    facts.authApi === "required"
  );
}

/** Why the process must not start, as a sentence that says what to set; undefined: it may. */
export function refusalToStart(facts: {
  readonly listensBeyondLoopback: boolean;
  readonly staticToken: string;
  readonly adminPassword: string;
  /** How many manager accounts are configured. */
  readonly managers: number;
}): string | undefined {
  const hasCredential =
    facts.staticToken !== "" ||
    facts.adminPassword !== "" ||
    facts.managers > 0;
  if (!facts.listensBeyondLoopback || hasCredential) return undefined;
  return (
    "The HTTP API would be reachable beyond this machine without a configured credential. " +
    "Set api.token (JINDOU_API_TOKEN), admin.password (JINDOU_ADMIN_PASSWORD) or managers, or bind api.listen to 127.0.0.1."
  );
}
