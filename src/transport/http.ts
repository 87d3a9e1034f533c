// HTTP of one listener: native routes for the table, one catch-all for the rest. No state between
// calls. A call is admitted by its headers; the body of a refused call is not read into memory.
// uWebSockets.js drops a body slower than 16 KiB a second after 8 to 12 s. It also drops a
// connection with a request sent before an awaited answer (pipelining); behind a synchronous answer
// the request is served.

import type { HttpResponse, HttpRequest as NativeRequest, TemplatedApp } from "uWebSockets.js";
import { networkText } from "./address.ts";
import { type BodyBudget, BodyCollector, type BodyOwner } from "./http-body.ts";
import { HttpCall } from "./http-call.ts";
import { type AnnouncedBody, HeadCheck } from "./http-head.ts";
import { type WriteReply, withHeader, writeReply, writeReplyAndClose } from "./http-reply.ts";
import type { SocketLimits } from "./socket-limits.ts";
import { TurnEnd } from "./turn-end.ts";
import type { HttpEndpoint, HttpReply, HttpRoute, ListenerSpec } from "./types.ts";

/** Shared by all calls of a listener. */
interface HttpContext {
  readonly endpoint: HttpEndpoint;
  readonly allowed: AllowedMethods;
  readonly onError: ListenerSpec["onError"];
  readonly turnEnd: TurnEnd;
  readonly head: HeadCheck;
  readonly limits: SocketLimits;
  readonly bodies: BodyBudget;
}

type NativeHandler = (res: HttpResponse, req: NativeRequest) => void;

const NO_PARAMS: readonly string[] = [];

/** Mounts everything of `endpoint` on `app`. */
export function serveHttp(
  app: TemplatedApp,
  endpoint: HttpEndpoint,
  shared: Pick<ListenerSpec, "onError" | "limits" | "bodies">,
): void {
  const { onError, limits, bodies } = shared;
  const context: HttpContext = {
    endpoint,
    onError,
    limits,
    bodies,
    allowed: createAllowedMethods(endpoint.routes),
    turnEnd: new TurnEnd(),
    head: new HeadCheck([
      ...endpoint.headers,
      ...endpoint.routes.flatMap(({ headers = [] }) => headers),
    ]),
  };
  for (const route of endpoint.routes)
    if (route.method === "GET") app.get(route.path, serveGet(route, context));
    else app.post(route.path, servePost(route, context));
  app.any("/*", (res, req) => serveOther(res, req, context));
}

/** Answers every HTTP call of a listener that has sockets only. */
export function refuseHttp(app: TemplatedApp): void {
  app.any("/*", (res) => {
    res
      .writeStatus("426 Upgrade Required")
      .writeHeader("upgrade", "websocket")
      .writeHeader("content-type", "text/plain")
      .end("This address serves WebSocket connections only.\n", true);
  });
}

function serveGet(route: HttpRoute, context: HttpContext): NativeHandler {
  const open = callOpener(route, context);
  const { admit, handle, write } = stepsOf(route, context.endpoint);
  return (res, req) => {
    if (isMalformed(res, req, context)) return;
    const call = open(res, req);
    if (call === undefined) return serveOther(res, req, context);
    res.onAborted(() => call.abort());
    const verdict = call.admit(admit);
    if (verdict === undefined) call.run(handle, write);
    else if (!(verdict instanceof Promise)) call.refuse(verdict, "none");
    else
      void verdict.then((refused) => {
        if (refused === undefined) call.runCorked(handle, write);
        else call.refuse(refused, "none");
      });
  };
}

function servePost(route: HttpRoute, context: HttpContext): NativeHandler {
  const open = callOpener(route, context);
  const { endpoint, head } = context;
  const steps = stepsOf(route, endpoint);
  return (res, req) => {
    if (isMalformed(res, req, context)) return;
    const rest = head.body;
    const call = open(res, req);
    if (call === undefined) return serveOther(res, req, context);
    const isTooLarge = head.bodyBytes > steps.maxBodyBytes;
    const post = new PostCall(call, steps, { context, rest });
    res.onAborted(() => post.aborted());
    // Else uWebSockets.js would let a refused caller send without end.
    if (rest !== "large") post.collect(res);
    const verdict = call.admit(steps.admit);
    if (verdict !== undefined && !(verdict instanceof Promise)) return post.refuse(verdict);
    if (isTooLarge) return post.refuse(endpoint.tooLarge(call));
    if (rest === "large") post.collect(res);
    post.start(verdict);
  };
}

interface Steps {
  readonly admit: HttpRoute["admit"];
  readonly handle: HttpRoute["handle"];
  readonly write: WriteReply;
  readonly isPublic: boolean;
  readonly maxBodyBytes: number;
}

function stepsOf(route: HttpRoute, endpoint: HttpEndpoint): Steps {
  const { maxBodyBytes = endpoint.maxBodyBytes, isPublic = false } = route;
  return {
    isPublic,
    maxBodyBytes: Math.min(maxBodyBytes, endpoint.maxBodyBytes),
    admit: route.admit?.bind(route),
    handle: (request) => route.handle(request),
    write: isPublic ? writeReplyAndClose : writeReply,
  };
}

/** A POST whose body and whose verdict of `admit` may come in either order. */
class PostCall implements BodyOwner {
  readonly #call: HttpCall;
  readonly #steps: Steps;
  readonly #context: HttpContext;
  readonly #rest: AnnouncedBody;
  readonly #body: BodyCollector;
  #isAdmitted = false;
  /** The whole body while it waits for the verdict. */
  #whole: Uint8Array | undefined;

  constructor(
    call: HttpCall,
    steps: Steps,
    { context, rest }: { readonly context: HttpContext; readonly rest: AnnouncedBody },
  ) {
    this.#call = call;
    this.#steps = steps;
    this.#context = context;
    this.#rest = rest;
    this.#body = new BodyCollector(context.bodies, steps.maxBodyBytes);
  }

  /** Call it in the native handler, before `start` or `refuse`. */
  collect(res: HttpResponse): void {
    this.#body.collect(res, this);
  }

  start(verdict: Promise<HttpReply | undefined> | undefined): void {
    this.#isAdmitted = verdict === undefined;
    if (verdict !== undefined) void verdict.then((refused) => this.#admitted(refused));
  }

  aborted(): void {
    this.#dropWhole();
    this.#body.discard();
    this.#call.abort();
  }

  refuse(reply: HttpReply): void {
    this.#body.discard();
    this.#call.refuse(reply, this.#rest);
  }

  ended(): void {
    this.#call.bodyEnded();
  }

  partial(): void {
    if (this.#isAuthenticated) return;
    if (!this.#call.hold()) this.#body.discard();
  }

  collected(body: Uint8Array): void {
    // A call without a credential counts against its address while its handler runs.
    if (this.#steps.isPublic && !this.#call.hold()) return;
    if (this.#isAdmitted) {
      this.#call.body = body;
      return this.#call.run(this.#steps.handle, this.#steps.write);
    }
    if (!this.#context.bodies.take(body.length)) return this.rejected("no_room");
    this.#whole = body;
  }

  rejected(why: "too_large" | "no_room"): void {
    const { endpoint } = this.#context;
    const reply = why === "no_room" ? endpoint.busy : endpoint.tooLarge;
    this.#call.refuse(reply(this.#call), this.#rest);
  }

  #admitted(refused: HttpReply | undefined): void {
    const whole = this.#dropWhole();
    if (refused !== undefined) return this.refuse(refused);
    this.#isAdmitted = true;
    if (this.#isAuthenticated) this.#call.release();
    if (whole === undefined) return;
    this.#call.body = whole;
    this.#call.runCorked(this.#steps.handle, this.#steps.write);
  }

  /** Whether the caller has a valid credential, or the node requires none. */
  get #isAuthenticated(): boolean {
    return this.#isAdmitted && !this.#steps.isPublic;
  }

  #dropWhole(): Uint8Array | undefined {
    const whole = this.#whole;
    this.#whole = undefined;
    if (whole !== undefined) this.#context.bodies.give(whole.length);
    return whole;
  }
}

/** Its result is undefined for a path whose `:name` part is not valid percent-encoding. */
function callOpener(
  { method, path, headers = [] }: HttpRoute,
  { endpoint, onError, turnEnd, head, limits }: HttpContext,
): (res: HttpResponse, req: NativeRequest) => HttpCall | undefined {
  const paramCount = countParams(path);
  const headerNames = [...endpoint.headers, ...headers];
  const target = {
    method,
    path,
    params: NO_PARAMS,
    head,
    headerNames,
    onError,
    turnEnd,
    limits,
  };
  if (paramCount === 0) return (res, req) => new HttpCall(res, req, target);
  return (res, req) => {
    const params = readParams(req, paramCount);
    if (params === undefined) return undefined;
    return new HttpCall(res, req, { ...target, path: req.getUrl(), params });
  };
}

function readParams(req: NativeRequest, count: number): readonly string[] | undefined {
  const params: string[] = [];
  for (let i = 0; i < count; i++) {
    const part = decodePart(req.getParameter(i) ?? "");
    if (part === undefined) return undefined;
    params.push(part);
  }
  return params;
}

/** A path or method without a route. The body, if any, is not read. */
function serveOther(res: HttpResponse, req: NativeRequest, context: HttpContext): void {
  const { endpoint, allowed, onError, turnEnd, limits, head } = context;
  if (isMalformed(res, req, context)) return;
  const path = req.getUrl();
  const method = req.getCaseSensitiveMethod();
  const target = {
    method,
    path,
    params: NO_PARAMS,
    head,
    headerNames: endpoint.headers,
    onError,
    turnEnd,
    limits,
  };
  const allow = allowed(path);
  const isWrongMethod = allow !== "" && !allow.split(", ").includes(method);
  const call = new HttpCall(res, req, target);
  const rest = head.body;
  res.onAborted(() => call.abort());
  if (rest === "declared")
    res.onData((_chunk, isLast) => {
      if (isLast) call.bodyEnded();
    });
  call.refuseWith(
    (request) =>
      isWrongMethod
        ? withHeader(endpoint.wrongMethod(request, allow), "allow", allow)
        : endpoint.notFound(request),
    rest,
  );
}

/** Refuses an ambiguous request; what follows it on the connection cannot be trusted. */
function isMalformed(
  res: HttpResponse,
  req: NativeRequest,
  { head, endpoint, limits }: HttpContext,
): boolean {
  const problem = head.problem(req);
  if (problem === undefined) return false;
  limits.requested(networkText(res.getRemoteAddress()));
  writeReplyAndClose(res, endpoint.malformed(problem));
  return true;
}

/** The Allow header for `path`; "" when no route matches. */
type AllowedMethods = (path: string) => string;

/** Exact paths and `:name` patterns, split once. */
function createAllowedMethods(routes: readonly HttpRoute[]): AllowedMethods {
  const patterns = routes.map(({ method, path }) => ({
    method,
    parts: path.split("/"),
  }));
  return (path) => {
    const parts = path.split("/");
    const methods = patterns
      .filter((pattern) => matches(pattern.parts, parts))
      .map((pattern) => pattern.method);
    return [...new Set(methods)].sort().join(", ");
  };
}

function matches(pattern: readonly string[], parts: readonly string[]) {
  if (pattern.length !== parts.length) return false;
  return pattern.every((wanted, i) =>
    wanted.startsWith(":") ? parts[i] !== "" : wanted === parts[i],
  );
}

/** How many `:name` parts a route's path has. */
function countParams(path: string): number {
  return path.split("/").filter((part) => part.startsWith(":")).length;
}

/** Percent-decodes one part of a path; undefined when it is not valid. */
function decodePart(part: string): string | undefined {
  if (!part.includes("%")) return part;
  try {
    return decodeURIComponent(part);
  } catch {
    return undefined; // %zz, or not UTF-8
  }
}
