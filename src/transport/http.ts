// Serves the HTTP calls of one listener: registers the endpoint's routes and a catch-all route with
// the driver. A call is admitted or refused on the basis of its headers, and the body of a refused
// call is discarded. uWebSockets.js drops a connection that sends its next request while an
// asynchronous reply is pending. It also drops a connection that has sent its body at less than
// 16 KiB per second for 8 to 12 s.

import { networkText } from "./address.ts";
import {
  type ClientAddresses,
  FORWARDED_FOR,
  FORWARDED_PROTO,
  refusalWriter,
} from "./client-addresses.ts";
import type {
  Driver,
  DriverHandler,
  DriverRequest,
  DriverResponse,
  DriverServer,
} from "./driver.ts";
import { type BodyBudget, BodyCollector, type BodyOwner } from "./http-body.ts";
import { HttpCall } from "./http-call.ts";
import { type AnnouncedBody, HeadCheck, type HeaderSelection } from "./http-head.ts";
import {
  type WriteReply,
  withHeader,
  writeReply,
  writeReplyAlone,
  writeReplyAndClose,
} from "./http-reply.ts";
import { isVariable, paramsOf } from "./path-pattern.ts";
import type { SocketLimits } from "./socket-limits.ts";
import { TurnEnd } from "./turn-end.ts";
import type { HttpEndpoint, HttpReply, HttpRequest, HttpRoute, ListenerSpec } from "./types.ts";

interface HttpContext {
  readonly endpoint: HttpEndpoint;
  readonly allowed: AllowedMethods;
  readonly onError: ListenerSpec["onError"];
  readonly turnEnd: TurnEnd;
  readonly head: HeadCheck;
  /** The headers that the endpoint reads from every request. */
  readonly headers: HeaderSelection;
  readonly limits: SocketLimits;
  readonly bodies: BodyBudget;
  /** Finds addresses behind trusted proxies. `undefined` if no proxy is trusted. */
  readonly addresses: ClientAddresses | undefined;
  readonly driver: Driver;
  readonly isTls: boolean;
}

const NO_PARAMS: readonly string[] = [];

export function serveHttp(
  server: DriverServer,
  endpoint: HttpEndpoint,
  shared: Omit<ListenerSpec, "sockets"> & Pick<HttpContext, "addresses">,
): void {
  const { driver, onError, limits, bodies, addresses } = shared;
  const names = [
    ...(addresses === undefined ? [] : [FORWARDED_FOR, FORWARDED_PROTO]),
    ...endpoint.headers,
    ...endpoint.routes.flatMap(({ headers = [] }) => headers),
  ];
  const head = new HeadCheck(names, shared);
  const context: HttpContext = {
    endpoint,
    onError,
    limits,
    bodies,
    addresses,
    driver,
    isTls: shared.tls !== undefined,
    allowed: createAllowedMethods(endpoint.routes),
    turnEnd: new TurnEnd(),
    head,
    headers: head.select(endpoint.headers),
  };
  for (const route of endpoint.routes)
    if (route.method === "GET") {
      server.get(route.path, serveGet(route, "GET", context));
      server.head(route.path, serveGet(route, "HEAD", context));
    } else register(server, route, serveWithBody(route, context));
  server.any("/*", (res, req) => serveOther(res, req, context));
}

function register(server: DriverServer, { method, path }: HttpRoute, handler: DriverHandler): void {
  if (method === "PUT") server.put(path, handler);
  else if (method === "PATCH") server.patch(path, handler);
  else if (method === "DELETE") server.delete(path, handler);
  else server.post(path, handler);
}

const SOCKETS_ONLY: HttpReply = {
  status: 426,
  headers: { upgrade: "websocket", "content-type": "text/plain" },
  body: "This address serves only WebSocket connections of clients. The HTTP API for backends is at api.listen.\n",
};

export function refuseHttp(server: DriverServer, addresses: ClientAddresses | undefined): void {
  server.any("/*", (res) => refusalWriter(res, addresses)(res, SOCKETS_ONLY));
}

function serveGet(route: HttpRoute, method: "GET" | "HEAD", context: HttpContext): DriverHandler {
  const open = callOpener({ ...route, method }, context);
  const { admit, handle, write } = stepsOf(route, context.endpoint);
  const readPath = pathReader(route.path);
  return (res, req) => {
    if (refuseInvalid(res, req, readPath(req), context)) return;
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

function serveWithBody(route: HttpRoute, context: HttpContext): DriverHandler {
  const open = callOpener(route, context);
  const { endpoint, head } = context;
  const steps = stepsOf(route, endpoint);
  const readPath = pathReader(route.path);
  return (res, req) => {
    if (refuseInvalid(res, req, readPath(req), context)) return;
    const announced = head.body;
    const call = open(res, req);
    if (call === undefined) return serveOther(res, req, context);
    const isTooLarge = head.bodyBytes > steps.maxBodyBytes;
    const bodyCall = new BodyCall(call, steps, { context, announced });
    res.onAborted(() => bodyCall.aborted());
    // Without a data handler, uWebSockets.js would let a refused caller send unlimited data. A
    // large body needs no handler, because `refuse` ends the call.
    if (announced !== "large") bodyCall.collect(res);
    const verdict = call.admit(steps.admit);
    if (verdict !== undefined && !(verdict instanceof Promise)) return bodyCall.refuse(verdict);
    if (isTooLarge) return bodyCall.refuse(endpoint.tooLarge(call));
    if (announced === "large") bodyCall.collect(res);
    bodyCall.start(verdict);
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

class BodyCall implements BodyOwner {
  readonly #call: HttpCall;
  readonly #steps: Steps;
  readonly #context: HttpContext;
  readonly #announced: AnnouncedBody;
  readonly #body: BodyCollector;
  #isAdmitted = false;
  #collected: Uint8Array | undefined;

  constructor(
    call: HttpCall,
    steps: Steps,
    { context, announced }: { readonly context: HttpContext; readonly announced: AnnouncedBody },
  ) {
    this.#call = call;
    this.#steps = steps;
    this.#context = context;
    this.#announced = announced;
    this.#body = new BodyCollector(context.bodies, steps.maxBodyBytes);
  }

  /** Collects the body. Must be called in the driver's handler, before `start` or `refuse`. */
  collect(res: DriverResponse): void {
    this.#body.collect(res, this);
  }

  start(verdict: Promise<HttpReply | undefined> | undefined): void {
    this.#isAdmitted = verdict === undefined;
    if (verdict !== undefined) void verdict.then((refused) => this.#admitted(refused));
  }

  aborted(): void {
    this.#takeCollected();
    this.#body.discard();
    this.#call.abort();
  }

  refuse(reply: HttpReply): void {
    this.#body.discard();
    this.#call.refuse(reply, this.#announced);
  }

  ended(): void {
    this.#call.bodyEnded();
  }

  partial(): void {
    if (this.#isAuthenticated) return;
    if (!this.#call.hold()) this.#body.discard();
  }

  collected(body: Uint8Array): void {
    // A call without a credential counts against its address's limit while its handler runs.
    if (this.#steps.isPublic && !this.#call.hold()) return;
    if (this.#isAdmitted) {
      this.#call.body = body;
      return this.#call.run(this.#steps.handle, this.#steps.write);
    }
    if (!this.#context.bodies.reserve(body.length)) return this.rejected("no_room");
    this.#collected = body;
  }

  rejected(why: "too_large" | "no_room"): void {
    const { endpoint } = this.#context;
    const reply = why === "no_room" ? endpoint.busy() : endpoint.tooLarge(this.#call);
    this.#call.refuse(reply, this.#announced);
  }

  #admitted(refused: HttpReply | undefined): void {
    const collected = this.#takeCollected();
    if (refused !== undefined) return this.refuse(refused);
    this.#isAdmitted = true;
    if (this.#isAuthenticated) this.#call.release();
    if (collected === undefined) return;
    this.#call.body = collected;
    this.#call.runCorked(this.#steps.handle, this.#steps.write);
  }

  get #isAuthenticated(): boolean {
    return this.#isAdmitted && !this.#steps.isPublic;
  }

  #takeCollected(): Uint8Array | undefined {
    const collected = this.#collected;
    this.#collected = undefined;
    if (collected !== undefined) this.#context.bodies.release(collected.length);
    return collected;
  }
}

/**
 * Returns a function that opens a call. That function returns `undefined` if a `:name` segment is
 * not valid.
 */
function callOpener(
  { method, path, headers = [] }: Pick<HttpRequest, "method" | "path"> & Pick<HttpRoute, "headers">,
  { endpoint, onError, turnEnd, head, limits, addresses, driver, isTls }: HttpContext,
): (res: DriverResponse, req: DriverRequest) => HttpCall | undefined {
  const paramCount = countParams(path);
  const target = {
    method,
    path,
    params: NO_PARAMS,
    head,
    headers: head.select([...endpoint.headers, ...headers]),
    onError,
    turnEnd,
    limits,
    addresses,
    driver,
    isTls,
  };
  if (!isVariable(path)) return (res) => new HttpCall(res, target);
  return (res, req) => {
    const params = readParams(req, paramCount);
    if (params === undefined) return undefined;
    return new HttpCall(res, { ...target, path: req.getUrl(), params });
  };
}

/**
 * Returns a function that reads a request's path. A pattern without variable segments is the path
 * itself, which saves a call to the library.
 */
function pathReader(pattern: string): (req: DriverRequest) => string {
  return isVariable(pattern) ? (req) => req.getUrl() : () => pattern;
}

function readParams(req: DriverRequest, count: number): readonly string[] | undefined {
  const params: string[] = [];
  for (let i = 0; i < count; i++) {
    const segment = decodeSegment(req.getParameter(i) ?? "");
    if (segment === undefined) return undefined;
    params.push(segment);
  }
  return params;
}

function serveOther(res: DriverResponse, req: DriverRequest, context: HttpContext): void {
  const { endpoint, allowed, onError, turnEnd, limits, addresses, driver, head, headers, isTls } =
    context;
  const path = req.getUrl();
  if (refuseInvalid(res, req, path, context)) return;
  const method = req.getCaseSensitiveMethod();
  const target = {
    method,
    path,
    params: NO_PARAMS,
    head,
    headers,
    onError,
    turnEnd,
    limits,
    addresses,
    driver,
    isTls,
  };
  const allow = allowed(path);
  const isWrongMethod = allow !== "" && !allow.split(", ").includes(method);
  const call = new HttpCall(res, target);
  const announced = head.body;
  res.onAborted(() => call.abort());
  if (announced === "declared")
    res.onData((_chunk, isLast) => {
      if (isLast) call.bodyEnded();
    });
  call.refuseWith(
    (request) =>
      isWrongMethod
        ? withHeader(endpoint.wrongMethod(request, allow), "allow", allow)
        : endpoint.notFound(request),
    announced,
  );
}

/**
 * Refuses a request with an invalid head and closes the connection, because its further bytes
 * cannot be trusted. Returns false if the head is valid.
 */
function refuseInvalid(
  res: DriverResponse,
  req: DriverRequest,
  path: string,
  { head, driver, limits }: HttpContext,
): boolean {
  const refusal = head.refusal(req, path);
  if (refusal === undefined) return false;
  if (!driver.reportsFirstRequests) limits.requested(networkText(res.getRemoteAddress()));
  writeReplyAlone(res, refusal);
  return true;
}

type AllowedMethods = (path: string) => string;

function createAllowedMethods(routes: readonly HttpRoute[]): AllowedMethods {
  const patterns = routes.map(({ method, path }) => ({
    method,
    segments: path.split("/"),
  }));
  return (path) => {
    const segments = path.split("/");
    const methods = patterns
      .filter((pattern) => paramsOf(pattern.segments, segments) !== undefined)
      .flatMap(({ method }) => (method === "GET" ? [method, "HEAD"] : [method]));
    return [...new Set(methods)].sort().join(", ");
  };
}

function countParams(path: string): number {
  return path.split("/").filter((segment) => segment.startsWith(":")).length;
}

function decodeSegment(segment: string): string | undefined {
  if (!segment.includes("%")) return segment;
  try {
    return decodeURIComponent(segment);
  } catch {
    return undefined;
  }
}
