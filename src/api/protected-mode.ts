// Protected mode: decides whether calls need a credential, and whether the process may start. Only
// pure functions.

/** Manager accounts alone do not make a credential necessary. */
export function credentialRule(facts: {
  readonly listensBeyondLoopback: boolean;
  readonly staticToken: string;
  readonly authApi: "auto" | "required";
}): boolean {
  return facts.listensBeyondLoopback || facts.staticToken !== "" || facts.authApi === "required";
}

/** Returns why the process must not start and which keys to set, or `undefined` if it may start. */
export function refusalToStart(facts: {
  readonly listensBeyondLoopback: boolean;
  readonly staticToken: string;
  readonly adminPassword: string;
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
