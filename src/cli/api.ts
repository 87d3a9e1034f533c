// Calls the HTTP API of a running node. Owns the access token from a login with a manager's
// password.

import { request } from "node:http";
import { request as requestWithTls } from "node:https";
import { text as readAll } from "node:stream/consumers";
import { formatAddress, parseAddress } from "../lib/address.ts";
import { CommandError, FAILED, NO_ANSWER, usageError } from "./command-error.ts";

const TIMEOUT_MS = 10_000;

/** Parts of the configuration that are needed to call a node. */
export interface ApiConfig {
  readonly api: {
    readonly listen: string;
    readonly token: string;
    readonly tls: { readonly certFile: string };
  };
  readonly admin: { readonly password: string };
  readonly managers: readonly Account[];
}

interface Account {
  readonly username: string;
  readonly password: string;
}

interface ApiReply {
  readonly status: number;
  readonly body: Readonly<Record<string, unknown>>;
}

export class Api {
  readonly url: URL;
  readonly #config: ApiConfig;
  #accessToken: string | undefined;

  constructor(url: URL, config: ApiConfig) {
    this.url = url;
    this.#config = config;
  }

  /**
   * Returns the body of the reply. After a 401, logs in and repeats the call if a manager's
   * password is configured but no API token. Throws a CommandError if the call fails.
   */
  async call(path: string, body?: unknown): Promise<ApiReply["body"]> {
    let reply = await this.request(path, body);
    if (reply.status === 401 && (await this.#login())) reply = await this.request(path, body);
    if (reply.status === 200) return reply.body;
    throw new CommandError(this.#refusal(reply), FAILED);
  }

  /**
   * Returns the reply, whatever its status. Throws a CommandError if there is no reply or the reply
   * is not JSON.
   */
  async request(path: string, body?: unknown): Promise<ApiReply> {
    const { status, text } = await exchange(new URL(path.slice(1), this.url), {
      body: body === undefined ? undefined : JSON.stringify(body),
      headers: { "content-type": "application/json", ...this.#credential() },
    }).catch((error: unknown) => {
      throw new CommandError(noAnswer(this.url, error), NO_ANSWER);
    });
    if (status === 401 && text === "") return { status, body: {} }; // from the `wukongim` dialect
    const reply = parseReply(text);
    if (reply === undefined)
      throw new CommandError(
        `${this.url.origin} responded with the status ${status}, but is not the API of Jindou. Name the API with --api.`,
        NO_ANSWER,
      );
    return { status, body: reply };
  }

  async close(): Promise<void> {
    if (this.#accessToken === undefined) return;
    await this.request("/manager/logout", {}).catch(() => undefined); // the token expires anyway
  }

  #credential(): Headers {
    if (this.#accessToken !== undefined) return { authorization: `Bearer ${this.#accessToken}` };
    const { token } = this.#config.api;
    return token === "" ? {} : { token };
  }

  async #login(): Promise<boolean> {
    const account = accountOf(this.#config);
    if (this.#config.api.token !== "" || account === undefined) return false;
    const { username, password } = account;
    const reply = await this.request("/manager/login", { username, password });
    if (reply.status !== 200) throw new CommandError(this.#refusal(reply), FAILED);
    this.#accessToken = String(reply.body.token);
    return true;
  }

  #refusal({ status, body }: ApiReply): string {
    const { api } = this.#config;
    if (status === 401 && api.token === "" && accountOf(this.#config) === undefined)
      return "The node needs a credential. Set JINDOU_API_TOKEN, or JINDOU_ADMIN_PASSWORD for a manager. To read the secret from a file, add _FILE to the name and set the variable to the path of the file.";
    if (status === 401 && api.token !== "")
      return "The node rejects the token in JINDOU_API_TOKEN. Set it to the node's api.token.";
    const sentence = String(body.error ?? body.msg ?? `HTTP status ${status}`);
    return `${/[.!?]$/.test(sentence) ? sentence : `${sentence}.`}`;
  }
}

/**
 * Sends one request, which is a GET if `body` is `undefined`, otherwise a POST. Does not follow
 * redirects.
 */
function exchange(
  url: URL,
  { body, headers }: { readonly body: string | undefined; readonly headers: Headers },
): Promise<{ readonly status: number; readonly text: string }> {
  return new Promise((resolve, reject) => {
    const send = url.protocol === "https:" ? requestWithTls : request;
    const method = body === undefined ? "GET" : "POST";
    const outgoing = send(url, { method, headers, agent: false }, (response) => {
      readAll(response)
        .then((text) => resolve({ status: response.statusCode ?? 0, text }), reject)
        .finally(() => clearTimeout(timer));
    });
    const timer = setTimeout(
      () => outgoing.destroy(Object.assign(new Error(), { code: "ETIMEDOUT" })),
      TIMEOUT_MS,
    );
    outgoing.on("error", (error) => {
      clearTimeout(timer);
      reject(error);
    });
    outgoing.end(body);
  });
}

type Headers = Readonly<Record<string, string>>;

/**
 * Returns an account whose password is configured in plain text: the first manager with such a
 * password, or `admin` if no managers are configured. Returns `undefined` if there is no such
 * account.
 */
function accountOf({ admin, managers }: ApiConfig): Account | undefined {
  if (managers.length > 0) return managers.find(({ password }) => password !== "");
  return admin.password === "" ? undefined : { username: "admin", password: admin.password };
}

/** Returns the URL of the API: `flag` if it is set, otherwise the configured node's address. */
export function apiUrl(flag: string | undefined, { api }: ApiConfig): URL {
  if (flag !== undefined) return urlOf(flag);
  const scheme = api.tls.certFile === "" ? "http" : "https";
  return new URL(`${scheme}://${reachable(api.listen, "--api=http://<host>:<port>")}/`);
}

/**
 * Returns the `host:port` at which this machine can reach a listener on this address. Throws a
 * CommandError that names `flag` if the system chooses the port.
 */
export function reachable(listen: string, flag: string): string {
  const { host = "", port = 0 } = parseAddress(listen) ?? {};
  if (port === 0)
    throw usageError(
      `The configuration leaves the port of ${listen} to the system. Specify the address with ${flag}.`,
    );
  const isWildcard = host === "0.0.0.0" || host === "::";
  return formatAddress({ host: isWildcard ? LOOPBACK[host] : host, port });
}

const LOOPBACK = { "0.0.0.0": "127.0.0.1", "::": "::1" } as const;

function urlOf(text: string): URL {
  const address = text.includes("://") ? text : `http://${text}`;
  const url = URL.canParse(address) ? new URL(address) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol) || url.hostname === "")
    throw usageError(
      `--api must be a URL such as http://127.0.0.1:5001, not ${JSON.stringify(text)}.`,
    );
  if (url.username !== "" || url.password !== "")
    throw usageError(
      "--api must not contain a user or a password, because other users of this machine can read command lines. Set JINDOU_API_TOKEN.",
    );
  url.search = "";
  url.hash = "";
  if (!url.pathname.endsWith("/")) url.pathname += "/";
  return url;
}

function parseReply(text: string): ApiReply["body"] | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? { ...value } : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Messages for failed connections, by a pattern of the error code. The first matching pattern is
 * used.
 */
const REASONS: readonly (readonly [RegExp, (place: string, code: string) => string])[] = [
  [
    /ECONNREFUSED/,
    (place) =>
      `Nothing listens on ${place}. Start the node, or name the address of its API with --api.`,
  ],
  [
    /ENOTFOUND|EAI_AGAIN/,
    (place) => `The host name in ${place} is unknown. Correct --api, or check the name server.`,
  ],
  [
    /CERT|SELF_SIGNED|UNABLE_TO|ERR_TLS/,
    (place, code) =>
      `The certificate of ${place} is not accepted (${code}). Use a host name that the certificate contains. If your own authority issued the certificate, set NODE_EXTRA_CA_CERTS to the authority's certificate file.`,
  ],
  [/SSL|EPROTO/, (place) => `${place} does not use TLS. Write http:// in --api.`],
  [
    /HPE_|ECONNRESET|EPIPE/,
    (place) =>
      `${place} closed the connection without an HTTP response. If its API uses TLS, write https:// in --api.`,
  ],
  [
    /TIMEDOUT/,
    (place) =>
      `${place} did not respond within ${TIMEOUT_MS / 1000} s. Check the node and the network.`,
  ],
];

function noAnswer({ origin }: URL, error: unknown): string {
  const { code = "", message = "" } = Object(error) as {
    readonly code?: string;
    readonly message?: string;
  };
  const reason = REASONS.find(([pattern]) => pattern.test(code));
  if (reason !== undefined) return reason[1](origin, code);
  return `${origin} cannot be called: ${message || code}.`;
}
