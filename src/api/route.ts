// The row type of the route table, and the functions that create rows. Most rows have a reader for
// the request's body or query string.

import type { Static, TSchema, Type } from "typebox";
import type { ErrorCode } from "../broker/errors.ts";
import type { HttpReply, HttpRequest, HttpStream } from "../transport/types.ts";
import { type Adapt, type BodyCheck, jsonReader, queryReader, type Reader } from "./body.ts";
import type { EdgeCode } from "./errors.ts";
import type { Access, Guard } from "./guard.ts";
import { statusBody } from "./reply-schemas.ts";

export type RouteReply = HttpReply | HttpStream;
export type Outcome = RouteReply | Promise<RouteReply>;

export interface Success {
  /** HTTP status. Absent means 200. */
  readonly status?: 201 | 204;
  /** True if the reply has no body. */
  readonly isEmpty?: true;
  readonly description: string;
  /** Schema of the body. `undefined` if the body is not JSON or has no fixed shape. */
  readonly body: TSchema | undefined;
  /** Content type of the body. Absent means JSON. */
  readonly contentType?: string;
  readonly eventStream?: string;
  /** Meaning of the status 204, for a route that also returns 200. */
  readonly nothing?: string;
  /** Meaning of the status 303. Absent if the route never returns it. */
  readonly redirect?: string;
}

export const DONE: Success = { description: "Success", body: statusBody };

interface RowDocs {
  readonly path: string;
  /** Operation id in the OpenAPI document. Generated clients name the method after it. */
  readonly operation: string;
  readonly access: Access;
  readonly tag: string;
  readonly summary: string;
  readonly success: Success;
  /** Meaning of the `:name` segments of the path that are not in `query`. */
  readonly params?: Readonly<Record<string, string>>;
  /**
   * Meaning of each status below 400, except the status of `success`. Replies with these statuses
   * have no JSON body.
   */
  readonly replies?: Readonly<Record<number, string>>;
  /** Error codes of the operation. Codes that every call can return are not listed. */
  readonly errors: readonly ErrorCode[];
  /** Error codes that the route returns with 403 instead of their usual status. */
  readonly forbidding?: readonly ErrorCode[];
  readonly edgeErrors?: readonly EdgeCode[];
  /**
   * Request headers that the route reads, in lower case. Headers that every call reads are not
   * listed.
   */
  readonly headers?: readonly string[];
  /** Headers of every reply of the route, including errors. */
  readonly replyHeaders?: Readonly<Record<string, string>>;
  /** Credentials that the route accepts besides those of the control plane. */
  readonly alsoAccepts?: readonly ("deviceToken" | "signedUrl")[];
  /**
   * Replaces the guard's check. A route with `admit` also serves viewers, and lets pages from any
   * origin read its replies.
   */
  readonly admit?: (request: HttpRequest, guard: Guard) => ReturnType<Guard>;
}

/**
 * A row of the route table. `run` may reject, and applies `adapt` before validation. A route with a
 * streamed reply calls `guard` again while the reply is open.
 */
export interface ApiRoute extends RowDocs {
  readonly method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  readonly body: TSchema | undefined;
  readonly query: Type.TObject | undefined;
  /** Content type of a body whose lines have the schema `body`. Absent means JSON. */
  readonly bodyType?: string;
  readonly run: (request: HttpRequest, guard: Guard, adapt?: Adapt) => Outcome;
}

export function postRoute<S extends TSchema>(
  row: RowDocs & {
    /** HTTP method. Absent means POST. */
    readonly method?: "PATCH";
    readonly body: S;
    /**
     * Name of a field in which integers with 16 or more digits are read as strings, so that no
     * digit is lost.
     */
    readonly longIntegers?: string;
    handle(body: Static<S>, request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, longIntegers, ...docs } = row;
  const run = runWith(jsonReader(row.body, undefined, longIntegers), handle);
  return { method: "POST", ...docs, query: undefined, run };
}

export function postQueryRoute<S extends TSchema, Q extends Type.TObject>(
  row: RowDocs & {
    readonly body: S;
    readonly query: Q;
    readonly precheck: BodyCheck;
    handle(body: Static<S>, query: Static<Q>): Outcome;
  },
): ApiRoute {
  const { handle, precheck, ...docs } = row;
  const readBody = jsonReader(row.body, precheck);
  const readQuery = queryReader(row.query);
  const run: ApiRoute["run"] = (request, _guard, adapt) => {
    const body = readBody(request, adapt);
    if ("refusal" in body) return body.refusal;
    const query = readQuery(request);
    if ("refusal" in query) return query.refusal;
    return withIgnoredFields(body.ignored, handle(body.value, query.value));
  };
  return { ...docs, method: "POST", run };
}

export function queryRoute<S extends Type.TObject>(
  row: RowDocs & {
    readonly query: S;
    handle(query: Static<S>, request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, ...docs } = row;
  const run = runWith(queryReader(row.query), handle);
  return { ...docs, method: "GET", body: undefined, run };
}

export function plainRoute(
  row: RowDocs & {
    readonly method: "GET" | "POST" | "DELETE";
    handle(request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, ...docs } = row;
  return { ...docs, body: undefined, query: undefined, run: handle };
}

/** Creates a POST route whose request body is not JSON. The handler reads the body itself. */
export function linesRoute(
  row: RowDocs & {
    readonly body: TSchema;
    readonly bodyType: string;
    handle(request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, ...docs } = row;
  return { ...docs, method: "POST", query: undefined, run: handle };
}

function runWith<T>(
  read: Reader<T>,
  handle: (value: T, request: HttpRequest) => Outcome,
): ApiRoute["run"] {
  return (request, _guard, adapt) => {
    const input = read(request, adapt);
    if ("refusal" in input) return input.refusal;
    return withIgnoredFields(input.ignored, handle(input.value, request));
  };
}

function withIgnoredFields(ignored: string | undefined, outcome: Outcome): Outcome {
  if (ignored === undefined) return outcome;
  const addHeader = (reply: RouteReply) => withHeader(reply, "jindou-ignored-fields", ignored);
  return outcome instanceof Promise ? outcome.then(addHeader) : addHeader(outcome);
}

/** Returns the reply with the header added. */
export function withHeader(reply: RouteReply, name: string, value: string): RouteReply {
  const headers = { ...reply.headers, [name]: value };
  if (!("opened" in reply)) return { ...reply, headers };
  const { status, filler } = reply; // a spread does not copy the methods of a class
  return {
    ...{ status, filler, headers },
    opened: (body) => reply.opened(body),
    writable: () => reply.writable(),
    closed: () => reply.closed(),
  };
}

/** Returns true if the parameter `name` of the row's `query` is in the path, not in the query string. */
export function isInPath(name: string, { path }: Pick<ApiRoute, "path">): boolean {
  return path.split("/").includes(`:${name}`) || (name === "path" && path.endsWith("/*"));
}
