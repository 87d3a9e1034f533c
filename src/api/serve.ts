// Converts a row of the route table to a route of the listener. Routes never throw, and must never
// log a body, a token or a password.

import { BrokerError } from "../broker/errors.ts";
import type { ApiMetrics, RequestCounter } from "../observe/metrics.ts";
import type { HttpReply, HttpRequest, HttpRoute } from "../transport/types.ts";
import { ignoredParameters } from "./body.ts";
import type { Dialect } from "./dialect.ts";
import { HTTP_STATUS, thrownReply } from "./errors.ts";
import type { Guard } from "./guard.ts";
import { OPEN_TO_PAGES } from "./reply.ts";
import { type ApiRoute, isInPath, type RouteReply, withHeader } from "./route.ts";

export interface ApiLog {
  error(fields: { readonly err: unknown }, message: string): void;
  warn(fields: { readonly err: unknown }, message: string): void;
}

const OUTAGE_LOG_MS = 1000;
/**
 * Maximum body size of a call without a credential. The longest login fits even if all its
 * characters are escaped, provided that they are in the Basic Multilingual Plane.
 */
const MAX_PUBLIC_BODY_BYTES = 8192;

export function createServe({
  guard,
  dialect,
  log,
  requestCounter,
}: {
  readonly guard: Guard;
  readonly dialect: Dialect;
  readonly log: ApiLog;
  readonly requestCounter: ApiMetrics["requestCounter"] | undefined;
}): (route: ApiRoute) => HttpRoute {
  const report = createReport(log);
  return (route) => {
    const { method, path, headers = [], access, replyHeaders } = route;
    const isPublic = access === "public" || access === "login";
    const fail = (thrown: unknown): HttpReply => {
      report(route, thrown);
      return thrownReply(thrown);
    };
    const admitCaller = route.admit;
    const translate = (reply: HttpReply) => dialect.reply(reply, route);
    const adapt = dialect.adaptOf(route);
    const context = { fail, translate, count: requestCounter?.(path) };
    const admit = namingIgnored(
      route,
      guarded(
        (request) =>
          admitCaller === undefined ? guard(request, access) : admitCaller(request, guard),
        context,
      ),
    );
    const handle = namingIgnored(
      route,
      guarded((request) => route.run(request, guard, adapt), context),
    );
    const moreHeaders = replyHeaders ?? (admitCaller === undefined ? {} : OPEN_TO_PAGES);
    return {
      method,
      path,
      headers,
      isPublic,
      ...(isPublic ? { maxBodyBytes: MAX_PUBLIC_BODY_BYTES } : {}),
      admit: withHeaders(moreHeaders, admit),
      handle: withHeaders(moreHeaders, handle),
    };
  };
}

type Step<Result> = (request: HttpRequest) => Result | Promise<Result>;

/**
 * Returns a step that calls `step` and never throws. If the result is a reply, the reply is
 * counted.
 */
function guarded<Result extends RouteReply | undefined>(
  step: Step<Result>,
  {
    fail,
    translate,
    count,
  }: {
    readonly fail: (thrown: unknown) => HttpReply;
    readonly translate: (reply: HttpReply) => HttpReply;
    readonly count: RequestCounter | undefined;
  },
): Step<Result | HttpReply> {
  const finish = (result: Result | HttpReply, startMs: number): Result | HttpReply => {
    if (result === undefined) return result;
    const reply = "opened" in result ? result : translate(result);
    count?.(reply.status, performance.now() - startMs);
    return reply;
  };
  return (request) => {
    const startMs = performance.now();
    let outcome: Result | Promise<Result>;
    try {
      outcome = step(request);
    } catch (thrown) {
      return finish(fail(thrown), startMs);
    }
    if (!(outcome instanceof Promise)) return finish(outcome, startMs);
    return outcome.then(
      (result) => finish(result, startMs),
      (thrown) => finish(fail(thrown), startMs),
    );
  };
}

/** Returns a step that adds a header with the ignored query parameters to each reply of `step`. */
function namingIgnored(
  route: ApiRoute,
  step: Step<HttpReply | undefined>,
): Step<HttpReply | undefined>;
function namingIgnored(route: ApiRoute, step: Step<RouteReply>): Step<RouteReply>;
function namingIgnored(
  route: ApiRoute,
  step: Step<RouteReply | undefined>,
): Step<RouteReply | undefined> {
  const parameters = Object.keys(route.query?.properties ?? {});
  const names = new Set(parameters.filter((name) => !isInPath(name, route)));
  return (request) => {
    const outcome = step(request);
    if (request.query === "") return outcome;
    const addHeader = (reply: RouteReply | undefined) => {
      if (reply === undefined) return reply;
      const ignored = ignoredParameters(request.query, names);
      return ignored === undefined
        ? reply
        : withHeader(reply, "jindou-ignored-parameters", ignored);
    };
    return outcome instanceof Promise ? outcome.then(addHeader) : addHeader(outcome);
  };
}

/**
 * Returns a step that adds headers to each reply of `step`, except to a streamed reply, which
 * already has these headers.
 */
function withHeaders<Result extends RouteReply | undefined>(
  headers: Readonly<Record<string, string>>,
  step: Step<Result>,
): Step<Result> {
  if (Object.keys(headers).length === 0) return step;
  const addHeader = (reply: Result): Result =>
    reply === undefined || "opened" in reply
      ? reply
      : { ...reply, headers: { ...reply.headers, ...headers } };
  return (request) => {
    const outcome = step(request);
    return outcome instanceof Promise ? outcome.then(addHeader) : addHeader(outcome);
  };
}

function createReport(log: ApiLog): (route: ApiRoute, thrown: unknown) => void {
  let nextOutageMs = 0;
  return (route, thrown) => {
    const code = thrown instanceof BrokerError ? thrown.code : "internal";
    const fields = { method: route.method, path: route.path, code };
    if (HTTP_STATUS[code] === 500)
      return log.error({ ...fields, err: thrown }, "Could not handle a request");
    const nowMs = performance.now();
    if (HTTP_STATUS[code] !== 503 || nowMs < nextOutageMs) return;
    nextOutageMs = nowMs + OUTAGE_LOG_MS;
    log.warn({ ...fields, err: thrown }, "Requests are rejected with 503");
  };
}
