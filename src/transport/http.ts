// HTTP of one listener: native routes for the table, one catch-all for the rest, bodies up to the limit. No state between calls.
// A body over its declared limit is answered and no longer read into memory: the reply asks the peer to close, and uWebSockets.js cuts it
// off 10 s later if it sends on. Closing at once would reset the connection, and many clients would lose the reply. A body without a
// declared length that grows over the limit is cut off at once, because there the time-out starts anew with what comes in.
// A request sent before an awaited answer (pipelining) makes uWebSockets.js drop the connection; behind a synchronous answer it is served.

import type {
  HttpResponse,
  HttpRequest as NativeRequest,
  TemplatedApp,
} from "uWebSockets.js";
import { collectBody } from "./http-body.ts";
import { HttpCall } from "./http-call.ts";
import {
  type AllowedMethods,
  countParams,
  createAllowedMethods,
  decodePart,
} from "./http-paths.ts";
import {
  withHeader,
  writeReply,
  writeReplyAndClose,
  writeReplyHead,
} from "./http-reply.ts";
import { TurnEnd } from "./turn-end.ts";
import type {
  HttpEndpoint,
  HttpRequest,
  HttpRoute,
  ListenerSpec,
} from "./types.ts";

/** What all calls of a listener share. */
interface Site {
  readonly endpoint: HttpEndpoint;
  readonly allowed: AllowedMethods;
  readonly onError: ListenerSpec["onError"];
  readonly turnEnd: TurnEnd;
}

type NativeHandler = (res: HttpResponse, req: NativeRequest) => void;

const NO_PARAMS: readonly string[] = [];

/** Mounts everything of `endpoint` on `app`. */
export function serveHttp(
  app: TemplatedApp,
  endpoint: HttpEndpoint,
  onError: ListenerSpec["onError"],
): void {
  const allowed = createAllowedMethods(endpoint.routes);
  const turnEnd = new TurnEnd();
  const site: Site = { endpoint, allowed, onError, turnEnd };
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
  const handle = (request: HttpRequest) => route.handle(request);
  return (res, req) => {
    const call = open(res, req);
    if (call === undefined) return serveOther(res, req, site);
    res.onAborted(() => call.abort());
    call.run(handle);
  };
}

function servePost(route: HttpRoute, site: Site): NativeHandler {
  const open = callOpener(route, site);
  const handle = (request: HttpRequest) => route.handle(request);
  const { endpoint } = site;
  const refuse = (request: HttpRequest) =>
    withHeader(endpoint.tooLarge(request), "connection", "close");
  return (res, req) => {
    const call = open(res, req);
    if (call === undefined) return serveOther(res, req, site);
    res.onAborted(() => call.abort());
    if (Number(req.getHeader("content-length")) > endpoint.maxBodyBytes)
      return call.run(refuse);
    collectBody(res, endpoint.maxBodyBytes, (body) => {
      if (body === undefined) return call.run(refuse, writeReplyAndClose);
      call.body = body;
      call.run(handle);
    });
  };
}

/** Reads calls of `route`; its result is undefined for a path whose `:name` part is no valid percent-encoding. */
function callOpener(
  { method, path, headers = [] }: HttpRoute,
  { endpoint, onError, turnEnd }: Site,
): (res: HttpResponse, req: NativeRequest) => HttpCall | undefined {
  const paramCount = countParams(path);
  const headerNames = [...endpoint.headers, ...headers];
  const parts = { headerNames, onError, turnEnd };
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

/** A path or method no route takes. The body, if any, is not read; uWebSockets.js gives the peer 10 s to send it. */
function serveOther(
  res: HttpResponse,
  req: NativeRequest,
  { endpoint, allowed, onError, turnEnd }: Site,
): void {
  const path = req.getUrl();
  const method = req.getCaseSensitiveMethod();
  const parts = { headerNames: endpoint.headers, onError, turnEnd };
  const target = { method, path, params: NO_PARAMS, ...parts };
  const allow = allowed(path);
  const isWrongMethod = allow !== "" && !allow.split(", ").includes(method);
  new HttpCall(res, req, target).run(
    (request) =>
      isWrongMethod
        ? withHeader(endpoint.wrongMethod(request, allow), "allow", allow)
        : endpoint.notFound(request),
    method === "HEAD" ? writeReplyHead : writeReply,
  );
}
