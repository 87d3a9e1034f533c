// Serves the web pages that the package contains: the demo and the console. They are static files
// and need no credential. Caches each file after the first read. The cache needs no limit, because
// the number of built files is fixed.

import { gzip } from "node:zlib";
import type { HttpReply, HttpRequest, HttpRoute } from "../transport/types.ts";
import { edgeReply } from "./errors.ts";

type PageName = "demo" | "console";

/** Facts about the broker that the demo needs. */
export interface DemoSite {
  /** Returns the URL at which a page on this machine can reach the client listener. */
  clientUrl(): string;
  /** Returns true if clients on a page from this origin may connect. */
  allowsOrigin(origin: string): boolean;
  /** Scheme and `://` of the API. */
  readonly scheme: string;
}

interface PagesPorts {
  /** Reads a built file such as `demo/index.html`. Rejects if the file does not exist. */
  readonly readFile: (path: string) => Promise<Uint8Array>;
  /** `undefined` if the API needs a credential. The demo exists only in protected mode. */
  readonly demo: DemoSite | undefined;
  readonly hasConsole: boolean;
}

interface StaticFile {
  readonly plain: Uint8Array;
  readonly gzipped: Uint8Array;
}

/** Matches the name of a built script or style sheet, which contains a hash of its content. */
const HASHED_NAME = /^[a-z-]+-[A-Z0-9]{8}\.(js|css)$/;
const TYPES: Readonly<Record<string, string>> = { js: "text/javascript", css: "text/css" };
/** Matches a list of codings that contains gzip, unless gzip has the weight 0. */
const ACCEPTS_GZIP = /(^|[,\s])gzip(?!\s*;\s*q=0(\.0*)?\s*(,|$))/i;
const FOREVER = "public, max-age=31536000, immutable";

const DEMO_NEEDS_PROTECTED_MODE =
  "The demo is served only while calls need no credential: api.listen and api.compatListen are loopback addresses, and neither api.token nor auth.api = required is set";
const CONSOLE_IS_OFF = "The console is switched off; set api.console to on";
const NOT_BUILT = "This file does not exist; run npm run build if the pages were never built";

/**
 * Returns the headers sent with every file. The content security policy allows scripts and styles
 * from the page's own origin, and calls to `connectSources`.
 */
function securityHeaders(connectSources = "'self'"): Readonly<Record<string, string>> {
  return {
    "content-security-policy": `default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src ${connectSources}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'`,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    vary: "accept-encoding",
  };
}

/** Returns the path to which `GET /` redirects a browser, or `undefined` if no page is served. */
export function frontPage({
  demo,
  hasConsole,
}: Pick<PagesPorts, "demo" | "hasConsole">): string | undefined {
  if (demo !== undefined) return "/demo/";
  return hasConsole ? "/console/" : undefined;
}

/** Returns the routes of the pages. A file is read when it is first requested. */
export function pageRoutes({ readFile, demo, hasConsole }: PagesPorts): readonly HttpRoute[] {
  const files = new Map<string, Promise<StaticFile>>();

  /** Returns a file, and caches the file for later calls. Rejects if the file does not exist. */
  function read(path: string): Promise<StaticFile> {
    const reading = files.get(path) ?? readFile(path).then(withGzip);
    files.set(path, reading);
    reading.catch(() => files.delete(path));
    return reading;
  }

  async function asset(page: PageName, request: HttpRequest): Promise<HttpReply> {
    const [name = ""] = request.params;
    const extension = HASHED_NAME.exec(name)?.[1];
    if (extension === undefined) return edgeReply("not_found");
    const file = await read(`${page}/${name}`).catch(() => undefined);
    if (file === undefined) return edgeReply("not_found", {}, NOT_BUILT);
    const type = `${TYPES[extension]}; charset=utf-8`;
    const headers = { ...securityHeaders(), "content-type": type, "cache-control": FOREVER };
    return encoded(file, headers, request);
  }

  async function index(page: PageName, request: HttpRequest): Promise<HttpReply> {
    const file = await read(`${page}/index.html`).catch(() => undefined);
    if (file === undefined) return edgeReply("not_found", {}, NOT_BUILT);
    const type = { "content-type": "text/html; charset=utf-8", "cache-control": "no-cache" };
    if (page !== "demo" || demo === undefined)
      return encoded(file, { ...securityHeaders(), ...type }, request);
    const { protocol, host } = new URL(demo.clientUrl());
    const headers = { ...securityHeaders(`'self' ${protocol}//${host}`), ...type };
    const origin = `${demo.scheme}${request.headers.host ?? ""}`;
    const body = filledIn(`${Buffer.from(file.plain)}`, {
      clientUrl: demo.clientUrl(),
      refusedOrigin: demo.allowsOrigin(origin) ? "" : origin,
      consolePath: hasConsole ? "/console/" : "",
    });
    return { status: 200, headers, body };
  }

  function routesOf(page: PageName): readonly HttpRoute[] {
    const common = { method: "GET", headers: ["accept-encoding", "host"], isPublic: true } as const;
    const redirect = redirectTo(`/${page}/`, 308);
    const isServed = page === "console" ? hasConsole : demo !== undefined;
    const reason = page === "console" ? CONSOLE_IS_OFF : DEMO_NEEDS_PROTECTED_MODE;
    const refusal = edgeReply("not_found", {}, reason);
    const serve = (handle: (request: HttpRequest) => HttpReply | Promise<HttpReply>) =>
      isServed ? handle : () => refusal;
    return [
      { ...common, path: `/${page}`, handle: serve(() => redirect) },
      { ...common, path: `/${page}/`, handle: serve((request) => index(page, request)) },
      { ...common, path: `/${page}/:file`, handle: serve((request) => asset(page, request)) },
    ];
  }

  return [...routesOf("demo"), ...routesOf("console")];
}

/** Returns a redirect. Caches must not reuse the redirect for callers that want JSON. */
export function redirectTo(location: string, status: 303 | 308): HttpReply {
  const headers = { location, "cache-control": "no-store", vary: "accept" };
  return { status, headers: { ...headers, "x-content-type-options": "nosniff" }, body: "" };
}

export function wantsHtml({ headers }: HttpRequest): boolean {
  return /(^|[,\s])text\/html\b/i.test(headers.accept ?? "");
}

function withGzip(plain: Uint8Array): Promise<StaticFile> {
  return new Promise((resolve, reject) =>
    gzip(plain, (error, gzipped) => (error === null ? resolve({ plain, gzipped }) : reject(error))),
  );
}

function encoded(
  { plain, gzipped }: StaticFile,
  headers: Readonly<Record<string, string>>,
  request: HttpRequest,
): HttpReply {
  return ACCEPTS_GZIP.test(request.headers["accept-encoding"] ?? "")
    ? { status: 200, headers: { ...headers, "content-encoding": "gzip" }, body: gzipped }
    : { status: 200, headers, body: plain };
}

/** Replaces the placeholders in the page with facts about the broker. */
function filledIn(html: string, facts: Readonly<Record<string, string>>): string {
  return html.replaceAll(/\{\{(\w+)\}\}/g, (_, name: string) => escaped(facts[name] ?? ""));
}

function escaped(text: string): string {
  return text.replaceAll(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
