// What a row of the route table is, and how a row with a body or a query gets its reader. State: none.

import type { Static, TSchema, Type } from "typebox";
import type { ErrorCode } from "../broker/errors.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { jsonReader, queryReader, type Reader } from "./body.ts";
import type { Access } from "./guard.ts";

export type Outcome = HttpReply | Promise<HttpReply>;

/** What 200 means and looks like. */
export interface Success {
  readonly description: string;
  /** Undefined: not JSON, or too free to describe. */
  readonly body: TSchema | undefined;
  /** In place of JSON. */
  readonly contentType?: string;
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
}

/** A row of the table, ready to serve. `run` may throw or reject with anything. */
export interface ApiRoute extends RowDocs {
  readonly method: "GET" | "POST";
  readonly body: TSchema | undefined;
  readonly query: Type.TObject | undefined;
  readonly run: (request: HttpRequest) => Outcome;
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
    return "refused" in input ? input.refused : handle(input.value, request);
  };
}
