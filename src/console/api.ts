// Calls the HTTP API of the server that served this page, with the operator's credential. Keeps the
// credential in memory and in the session storage of this tab, never in a cookie.

const STORED = "jindou.console";
/** Maximum number of calls that try to reach the chosen node through a balancer. */
export const MAX_ATTEMPTS = 12;
/**
 * Time after which a read fails. Without a limit, a lost connection would stop periodic reads,
 * which wait for the reply to the previous read. The API never waits longer than this before it
 * replies.
 */
const READ_TIMEOUT_MS = 60_000;

interface Account {
  readonly username: string;
  readonly role: string;
  readonly permissions: readonly string[];
}

interface Credential {
  readonly token: string;
  /** Account that logged in, or `undefined` if the operator has pasted a token. */
  readonly account: Account | undefined;
}

export interface Answer {
  readonly status: number;
  readonly text: string;
  /** Parsed body, or `undefined` if it is not JSON. */
  readonly json: unknown;
}

/** Returns the body as indented JSON, or as it was received if it is not JSON. */
export function bodyText({ json, text }: Answer): string {
  return json === undefined ? text : JSON.stringify(json, undefined, 2);
}

export class ApiError extends Error {
  readonly status: number;
  readonly code: string;

  constructor({ status, json }: Pick<Answer, "status" | "json">) {
    const body = (json ?? {}) as { readonly error?: string; readonly code?: string };
    super(body.error ?? `The node replied with status ${status}`);
    this.status = status;
    this.code = body.code ?? "";
  }
}

export class Api {
  #credential: Credential | undefined = readStored();
  readonly #onSignedOut: () => void;

  /** Calls `onSignedOut` when the operator logs out, or when the API rejects a call with 401. */
  constructor(onSignedOut: () => void) {
    this.#onSignedOut = onSignedOut;
  }

  get account(): Account | undefined {
    return this.#credential?.account;
  }

  get hasCredential(): boolean {
    return this.#credential !== undefined;
  }

  /**
   * Returns true if the account has one of the permissions. Also returns true if no account is
   * logged in, for example if the operator has pasted a token or the API needs no credential.
   */
  allows(...permissions: readonly string[]): boolean {
    const granted = this.#credential?.account?.permissions;
    return (
      granted === undefined || granted.includes("*") || permissions.some((p) => granted.includes(p))
    );
  }

  /**
   * Returns true if the API accepts calls with the current credential, or needs no credential.
   * Forgets a rejected credential.
   */
  async isAdmitted(): Promise<boolean> {
    const { status } = await this.#fetch("GET", "/varz", undefined);
    if (status === 401) this.#set(undefined);
    return status !== 401;
  }

  async logIn(username: string, password: string): Promise<void> {
    this.#set(undefined);
    const answer = await this.#fetch("POST", "/manager/login", { username, password });
    if (answer.status !== 200) throw new ApiError(answer);
    const { token, user } = answer.json as { readonly token: string; readonly user: Account };
    this.#set({ token, account: user });
  }

  /**
   * Uses this static token or access token for all further calls. Rejects if the API does not
   * accept the token.
   */
  async useToken(token: string): Promise<void> {
    this.#set({ token, account: undefined });
    const answer = await this.#fetch("GET", "/varz", undefined);
    if (answer.status !== 401) return;
    this.#set(undefined);
    throw new ApiError(answer);
  }

  async logOut(): Promise<void> {
    if (this.account !== undefined)
      await this.#fetch("POST", "/manager/logout", {}).catch(() => undefined);
    this.#set(undefined);
    this.#onSignedOut();
  }

  async get<Body>(path: string): Promise<Body> {
    return this.#body(await this.send("GET", path, undefined));
  }

  async post<Body>(path: string, body: unknown): Promise<Body> {
    return this.#body(await this.send("POST", path, body));
  }

  /** Returns the body of a reply as text. */
  async text(path: string): Promise<string> {
    const answer = await this.send("GET", path, undefined);
    if (answer.status >= 400) throw new ApiError(answer);
    return answer.text;
  }

  /**
   * Returns the reply of the node `nodeId`, or of any node if `nodeId` is `undefined`. Behind a
   * balancer, a different node may reply, so up to `MAX_ATTEMPTS` calls are made. Returns the last
   * reply if the node `nodeId` did not reply to any of these calls.
   */
  async getFrom<Body extends { readonly node_id: string }>(
    path: string,
    nodeId: string | undefined,
  ): Promise<Body> {
    for (let attempt = 1; ; attempt += 1) {
      const body = await this.get<Body>(path);
      if (nodeId === undefined || body.node_id === nodeId || attempt === MAX_ATTEMPTS) return body;
    }
  }

  /** Makes a call and returns the reply, whatever its status. */
  async send(method: string, path: string, body: unknown): Promise<Answer> {
    const answer = await this.#fetch(method, path, body);
    if (answer.status === 401) {
      this.#set(undefined);
      this.#onSignedOut();
    }
    return answer;
  }

  #body<Body>(answer: Answer): Body {
    if (answer.status >= 400) throw new ApiError(answer);
    return answer.json as Body; // the OpenAPI document describes the body
  }

  async #fetch(method: string, path: string, body: unknown): Promise<Answer> {
    const headers: Record<string, string> = { "jindou-dialect": "jindou" };
    if (this.#credential !== undefined) headers.authorization = `Bearer ${this.#credential.token}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const response = await fetch(path, {
      method,
      headers,
      credentials: "omit",
      cache: "no-store",
      signal: method === "GET" ? AbortSignal.timeout(READ_TIMEOUT_MS) : null,
      ...(body === undefined
        ? {}
        : { body: typeof body === "string" ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, text, json: parse(text) };
  }

  #set(credential: Credential | undefined): void {
    this.#credential = credential;
    try {
      if (credential === undefined) sessionStorage.removeItem(STORED);
      else sessionStorage.setItem(STORED, JSON.stringify(credential));
    } catch {
      // Without session storage, the credential is lost when the page is reloaded.
    }
  }
}

function readStored(): Credential | undefined {
  try {
    return parse(sessionStorage.getItem(STORED) ?? "") as Credential | undefined;
  } catch {
    return undefined;
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Returns the path and a query string. Empty parameters are omitted. */
export function withQuery(
  path: string,
  parameters: Readonly<Record<string, string | number | undefined>>,
): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters))
    if (value !== undefined && value !== "") query.set(name, String(value));
  const text = query.toString();
  return text === "" ? path : `${path}?${text}`;
}
