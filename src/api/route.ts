// What a row of the route table is, and how a row with a body or a query gets its reader. State: none.

import type { Static, TSchema, Type } from "typebox";
import type { ErrorCode } from "../broker/errors.ts";
import type { HttpReply, HttpRequest, HttpStream } from "../transport/types.ts";
import {
  type BodyCheck,
  jsonReader,
  queryReader,
  type Reader,
} from "./body.ts";
import type { Access, Guard } from "./guard.ts";

export type Answered = HttpReply | HttpStream;
export type Outcome = Answered | Promise<Answered>;

/** What 200 means and looks like. */
export interface Success {
  readonly description: string;
  /** Undefined: not JSON, or too free to describe. */
  readonly body: TSchema | undefined;
  /** In place of JSON. */
  readonly contentType?: string;
  /** What a caller that accepts server-sent events gets in place of JSON. */
  readonly eventStream?: string;
  /** What 204 means; undefined: it is not answered. */
  readonly nothing?: string;
}

/** What every row says of itself. */
export interface RowDocs {
  readonly path: string;
  readonly access: Access;
  readonly tag: string;
  readonly summary: string;
  readonly success: Success;
  /** Codes that the use case may answer, beyond those every call may. */
  readonly errors: readonly ErrorCode[];
  /** Request headers it reads beside those that every call may have, lower case. */
  readonly headers?: readonly string[];
  /** Judges who calls, in place of the guard's look at `access`. Such a row is also for viewers, and for pages of other origins. */
  readonly admit?: (request: HttpRequest, guard: Guard) => ReturnType<Guard>;
}

/** A row of the table, ready to serve. `run` may throw or reject with anything; `guard` is for a reply that goes on: who called is judged again. */
export interface ApiRoute extends RowDocs {
  readonly method: "GET" | "POST";
  readonly body: TSchema | undefined;
  readonly query: Type.TObject | undefined;
  readonly run: (request: HttpRequest, guard: Guard) => Outcome;
}

/** POST with a JSON body. */
export function postRoute<S extends TSchema>(
  row: RowDocs & {
    readonly body: S;
    handle(body: Static<S>, request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, ...docs } = row;
  const run = reading(jsonReader(row.body), handle);
  return { ...docs, method: "POST", query: undefined, run };
}

/** POST with a JSON body and a query string. `first` looks at the body before its schema does. */
export function postQueryRoute<S extends TSchema, Q extends Type.TObject>(
  row: RowDocs & {
    readonly body: S;
    readonly query: Q;
    readonly first: BodyCheck;
    handle(body: Static<S>, query: Static<Q>): Outcome;
  },
): ApiRoute {
  const { handle, first, ...docs } = row;
  const readBody = jsonReader(row.body, first);
  const readQuery = queryReader(row.query);
  const run = (request: HttpRequest): Outcome => {
    const body = readBody(request);
    if ("refused" in body) return body.refused;
    const query = readQuery(request);
    if ("refused" in query) return query.refused;
    return naming(body.ignored, handle(body.value, query.value));
  };
  return { ...docs, method: "POST", run };
}

/** GET with a query string. */
export function queryRoute<S extends Type.TObject>(
  row: RowDocs & {
    readonly query: S;
    handle(query: Static<S>, request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, ...docs } = row;
  const run = reading(queryReader(row.query), handle);
  return { ...docs, method: "GET", body: undefined, run };
}

/** A call that reads neither body nor query. */
export function plainRoute(
  row: RowDocs & {
    readonly method: "GET" | "POST";
    handle(request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, ...docs } = row;
  return { ...docs, body: undefined, query: undefined, run: handle };
}

function reading<T>(
  read: Reader<T>,
  handle: (value: T, request: HttpRequest) => Outcome,
): (request: HttpRequest) => Outcome {
  return (request) => {
    const input = read(request);
    if ("refused" in input) return input.refused;
    return naming(input.ignored, handle(input.value, request));
  };
}

/** The outcome with a header that names the body's fields that were ignored [decisions: Unknown body fields]. */
function naming(ignored: string | undefined, outcome: Outcome): Outcome {
  if (ignored === undefined) return outcome;
  const add = (reply: Answered): Answered =>
    "opened" in reply
      ? reply
      : {
          ...reply,
          headers: { ...reply.headers, "jindou-ignored-fields": ignored },
        };
  return outcome instanceof Promise ? outcome.then(add) : add(outcome);
}
