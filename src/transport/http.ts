// HTTP of one listener: native routes for the table, one catch-all for the rest, bodies up to the limit. No state between calls.
// Who calls is judged when the headers are there; of a call that is refused nothing more is read into memory.
// A body that does not come at 16 KiB a second, or stops, is cut off by uWebSockets.js after 8 to 12 s.
// A request sent before an awaited answer (pipelining) makes uWebSockets.js drop the connection; behind a synchronous answer it is served.

import type {
  HttpResponse,
  HttpRequest as NativeRequest,
  TemplatedApp,
} from "uWebSockets.js";
import { networkText } from "./address.ts";
import type { BodyBudget } from "./body-budget.ts";
import { BodyCollector, type BodyOwner } from "./http-body.ts";
import { HttpCall } from "./http-call.ts";
import { type AnnouncedBody, HeadCheck } from "./http-head.ts";
import {
  type AllowedMethods,
  countParams,
  createAllowedMethods,
  decodePart,
} from "./http-paths.ts";
import {
  type WriteReply,
  withHeader,
  writeReply,
  writeReplyAndClose,
} from "./http-reply.ts";
import type { SocketLimits } from "./socket-limits.ts";
import { TurnEnd } from "./turn-end.ts";
import type {
  HttpEndpoint,
  HttpReply,
  HttpRoute,
  ListenerSpec,
} from "./types.ts";

/** What all calls of a listener share. */
interface Site {
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
  const site: Site = {
    ...{ endpoint, onError, limits, bodies },
    allowed: createAllowedMethods(endpoint.routes),
    turnEnd: new TurnEnd(),
    head: new HeadCheck(),
  };
  for (const route of endpoint.routes)
    if (route.method === "GET") app.get(route.path, serveGet(route, site));
    else app.post(route.path, servePost(route, site));
  app.any("/*", (res, req) => serveOther(res, req, site));
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

function serveGet(route: HttpRoute, site: Site): NativeHandler {
  const open = callOpener(route, site);
  const { admit, handle, write } = stepsOf(route, site.endpoint);
  return (res, req) => {
    if (isMalformed(res, req, site)) return;
    const call = open(res, req);
    if (call === undefined) return serveOther(res, req, site);
    res.onAborted(() => call.abort());
    const verdict = call.judge(admit);
    if (verdict === undefined) call.run(handle, write);
    else if (!(verdict instanceof Promise)) call.refuse(verdict, "none");
    else
      void verdict.then((refused) => {
        if (refused === undefined) call.runCorked(handle, write);
        else call.refuse(refused, "none");
      });
  };
}

function servePost(route: HttpRoute, site: Site): NativeHandler {
  const open = callOpener(route, site);
  const { endpoint, head } = site;
  const steps = stepsOf(route, endpoint);
  return (res, req) => {
    if (isMalformed(res, req, site)) return;
    const rest = head.body;
    const call = open(res, req);
    if (call === undefined) return serveOther(res, req, site);
    const isTooLarge = head.bodyBytes > steps.maxBodyBytes;
    const post = new PostCall(call, steps, { site, rest });
    res.onAborted(() => post.aborted());
    // Else the library would let a refused caller send on for as long as bytes come.
    if (rest !== "large") post.collect(res);
    const verdict = call.judge(steps.admit);
    if (verdict !== undefined && !(verdict instanceof Promise))
      return post.refuse(verdict);
    if (isTooLarge) return post.refuse(endpoint.tooLarge(call));
    if (rest === "large") post.collect(res);
    post.start(verdict);
  };
}

/** What a route's calls go through. */
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

/** A POST that its headers did not get refused: its body, and the verdict on who calls, whichever comes first. */
class PostCall implements BodyOwner {
  readonly #call: HttpCall;
  readonly #steps: Steps;
  readonly #site: Site;
  readonly #rest: AnnouncedBody;
  readonly #body: BodyCollector;
  #isLetIn = false;
  /** Once it is there and waits for the verdict. */
  #whole: Uint8Array | undefined;

  constructor(
    call: HttpCall,
    steps: Steps,
    { site, rest }: { readonly site: Site; readonly rest: AnnouncedBody },
  ) {
    this.#call = call;
    this.#steps = steps;
    this.#site = site;
    this.#rest = rest;
    this.#body = new BodyCollector(site.bodies, steps.maxBodyBytes);
  }

  /** Call it in the native handler, before `start` or `refuse`. */
  collect(res: HttpResponse): void {
    this.#body.collect(res, this);
  }

  start(verdict: Promise<HttpReply | undefined> | undefined): void {
    this.#isLetIn = verdict === undefined;
    if (verdict !== undefined)
      void verdict.then((refused) => this.#judged(refused));
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
    // A caller without a credential may be made to wait for its answer.
    if (this.#steps.isPublic && !this.#call.hold()) return;
    if (this.#isLetIn) {
      this.#call.body = body;
      return this.#call.run(this.#steps.handle, this.#steps.write);
    }
    if (!this.#site.bodies.take(body.length)) return this.givenUp("no_room");
    this.#whole = body;
  }

  givenUp(why: "too_large" | "no_room"): void {
    const { endpoint } = this.#site;
    const reply = why === "no_room" ? endpoint.busy : endpoint.tooLarge;
    this.#call.refuse(reply(this.#call), this.#rest);
  }

  #judged(refused: HttpReply | undefined): void {
    const whole = this.#dropWhole();
    if (refused !== undefined) return this.refuse(refused);
    this.#isLetIn = true;
    if (this.#isAuthenticated) this.#call.letGo();
    if (whole === undefined) return;
    this.#call.body = whole;
    this.#call.runCorked(this.#steps.handle, this.#steps.write);
  }

  /** Whether the caller has shown a credential, or needs none by the node's settings. */
  get #isAuthenticated(): boolean {
    return this.#isLetIn && !this.#steps.isPublic;
  }

  #dropWhole(): Uint8Array | undefined {
    const whole = this.#whole;
    this.#whole = undefined;
    if (whole !== undefined) this.#site.bodies.give(whole.length);
    return whole;
  }
}

/** Reads calls of `route`; its result is undefined for a path whose `:name` part is no valid percent-encoding. */
function callOpener(
  { method, path, headers = [] }: HttpRoute,
  { endpoint, onError, turnEnd, limits }: Site,
): (res: HttpResponse, req: NativeRequest) => HttpCall | undefined {
  const paramCount = countParams(path);
  const headerNames = [...endpoint.headers, ...headers];
  const parts = { headerNames, onError, turnEnd, limits };
  const target = { method, path, params: NO_PARAMS, ...parts };
  if (paramCount === 0) return (res, req) => new HttpCall(res, req, target);
  return (res, req) => {
    const params = readParams(req, paramCount);
    if (params === undefined) return undefined;
    return new HttpCall(res, req, { ...target, path: req.getUrl(), params });
  };
}

function readParams(
  req: NativeRequest,
  count: number,
): readonly string[] | undefined {
  const params: string[] = [];
  for (let i = 0; i < count; i++) {
    const part = decodePart(req.getParameter(i) ?? "");
    if (part === undefined) return undefined;
    params.push(part);
  }
  return params;
}

/** A path or method no route takes. The body, if any, is not read. */
function serveOther(res: HttpResponse, req: NativeRequest, site: Site): void {
  const { endpoint, allowed, onError, turnEnd, limits, head } = site;
  if (isMalformed(res, req, site)) return;
  const path = req.getUrl();
  const method = req.getCaseSensitiveMethod();
  const parts = { headerNames: endpoint.headers, onError, turnEnd, limits };
  const target = { method, path, params: NO_PARAMS, ...parts };
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

/** Refuses a request that could be read in two ways; what follows it on the connection cannot be trusted. */
function isMalformed(
  res: HttpResponse,
  req: NativeRequest,
  { head, endpoint, limits }: Site,
): boolean {
  const problem = head.problem(req);
  if (problem === undefined) return false;
  limits.requested(networkText(res.getRemoteAddress()));
  writeReplyAndClose(res, endpoint.malformed(problem));
  return true;
}
