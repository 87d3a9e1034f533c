// Generates the OpenAPI 3.1 document from the route table and the schemas that validate calls.

import type { Type } from "typebox";
import type { ErrorCode } from "../broker/errors.ts";
import type { Dialect } from "./dialect.ts";
import { EDGE_ERRORS } from "./errors.ts";
import { EVENT_SCHEMAS } from "./event-schemas.ts";
import { jsonReply } from "./reply.ts";
import { type ApiRoute, isInPath, plainRoute, type Success } from "./route.ts";

type Json = Readonly<Record<string, unknown>>;

const BEARER = { bearer: [] };
const STATIC_TOKEN = { staticToken: [] };
const ERROR_CONTENT = {
  "application/json": { schema: { $ref: "#/components/schemas/Error" } },
};

type Errors = Pick<Dialect, "errorBody" | "statusOf">;

interface ProductInfo {
  readonly version: string;
  readonly requiresCredential: boolean;
}

export function openApiRoute(
  routes: readonly ApiRoute[],
  info: ProductInfo,
  dialect: Errors,
): ApiRoute {
  let text: string | undefined;
  const row = plainRoute({
    method: "GET",
    path: "/openapi.json",
    operation: "getOpenApi",
    access: "credential",
    tag: "system",
    summary: "Returns this document",
    success: { description: "The OpenAPI document", body: undefined },
    errors: [],
    handle() {
      const allRoutes = [...routes, row];
      text ??= JSON.stringify(openApiDocument(allRoutes, info, dialect));
      return jsonReply(text);
    },
  });
  return row;
}

function openApiDocument(routes: readonly ApiRoute[], info: ProductInfo, dialect: Errors): Json {
  const paths: Record<string, Json> = {};
  for (const route of routes)
    paths[templateOf(route)] = {
      ...paths[templateOf(route)],
      [route.method.toLowerCase()]: operation(route, info, dialect),
    };
  const schemas: Record<string, unknown> = {};
  withReferences(dialect.errorBody, schemas);
  return {
    openapi: "3.1.0",
    info: {
      title: "Jindou control plane",
      version: info.version,
      description:
        "Each path that can be called with GET can also be called with HEAD. The reply has the same status and headers as the reply to GET.",
      license: { name: "Apache-2.0", identifier: "Apache-2.0" },
    },
    servers: [{ url: "/" }],
    paths: withReferences(paths, schemas),
    webhooks: withReferences(webhooks(), schemas),
    components: {
      schemas,
      securitySchemes: {
        bearer: {
          type: "http",
          scheme: "bearer",
          description: "Access token issued by POST /manager/login, or the static API token",
        },
        staticToken: {
          type: "apiKey",
          in: "header",
          name: "token",
          description: "Static API token from the configuration",
        },
        deviceToken: {
          type: "apiKey",
          in: "query",
          name: "token",
          description:
            "Token of the user `uid`: registered with POST /user/token, or a JWT if auth.clients allows it",
        },
        signedUrl: {
          type: "apiKey",
          in: "query",
          name: "sig",
          description: "Signature in a URL that POST /v1/sign returned",
        },
      },
    },
  };
}

/** Returns the requests that webhooks send, one for each type of event. */
function webhooks(): Json {
  const items = [...EVENT_SCHEMAS].map(([name, schema]) => {
    const requestBody = { required: true, content: { "application/json": { schema } } };
    const responses = { "2XX": { description: "The receiver has accepted the event" } };
    const operationId = `receive${schema.title}`;
    const { description: summary } = schema;
    return [name, { post: { operationId, tags: ["webhooks"], summary, requestBody, responses } }];
  });
  return Object.fromEntries(items);
}

const DATA_KEYWORDS = new Set(["examples", "default", "enum"]);

/**
 * Replaces each schema that has a title with a reference, and adds the schema to `schemas`. The
 * description of an enumeration stays beside the reference.
 */
function withReferences(schema: unknown, schemas: Record<string, unknown>): unknown {
  if (typeof schema !== "object" || schema === null) return schema;
  if (Array.isArray(schema)) return schema.map((item) => withReferences(item, schemas));
  const { title, ...untitled } = schema as { readonly title?: unknown };
  if (typeof title !== "string") return mapValues(schema, schemas);
  const { description, content } = isEnumeration(untitled)
    ? withOwnDescription(untitled)
    : { description: undefined, content: mapValues(untitled, schemas) };
  const existing = schemas[title];
  if (existing !== undefined && JSON.stringify(existing) !== JSON.stringify(content))
    throw new Error(`Two schemas have the title ${title}`);
  schemas[title] = content;
  return { $ref: `#/components/schemas/${title}`, description };
}

interface Enumeration {
  readonly enum: readonly unknown[];
  readonly description?: string;
  readonly "x-enum-varnames"?: readonly string[];
}

function isEnumeration(schema: object): schema is Enumeration {
  return "enum" in schema;
}

function withOwnDescription({ description, ...schema }: Enumeration) {
  const names = schema["x-enum-varnames"];
  const meanings = schema.enum.map((value, at) =>
    names === undefined ? value : `${value} (${names[at]?.toLowerCase()})`,
  );
  return { description, content: { description: `One of ${meanings.join(", ")}`, ...schema } };
}

function mapValues(schema: object, schemas: Record<string, unknown>): Json {
  return Object.fromEntries(
    Object.entries(schema).map(([key, child]) => {
      if (DATA_KEYWORDS.has(key)) return [key, child];
      // The keys of `properties` are property names, and one of them may be `title`.
      return [
        key,
        key === "properties" ? mapValues(child, schemas) : withReferences(child, schemas),
      ];
    }),
  );
}

function templateOf({ path }: Pick<ApiRoute, "path">): string {
  return path.replaceAll(/:(\w+)/g, "{$1}").replace(/\*$/, "{path}");
}

function documentedErrors(
  route: ApiRoute,
  { statusOf }: Errors,
): ReadonlyMap<number, ReadonlySet<string>> {
  const codesByStatus = new Map<number, Set<string>>();
  const add = (status: number, code: string) => {
    const codes = codesByStatus.get(status) ?? new Set<string>();
    codesByStatus.set(status, codes.add(code));
  };
  for (const code of [...route.errors, ...commonErrors(route)]) add(statusOf(code), code);
  for (const code of route.forbidding ?? []) add(statusOf("forbidden"), code);
  for (const code of route.edgeErrors ?? []) add(EDGE_ERRORS[code].status, code);
  if (route.method !== "GET") add(413, "too_large");
  if (route.body !== undefined) {
    add(415, "unsupported_media_type");
    add(415, "unsupported_encoding");
  }
  return new Map([...codesByStatus].sort(([a], [b]) => a - b));
}

function commonErrors(route: ApiRoute): readonly ErrorCode[] {
  const codes: ErrorCode[] = ["internal", "bad_request"];
  if (route.body !== undefined || route.query !== undefined) codes.push("unavailable", "too_late");
  if (route.method !== "GET" || route.query !== undefined) codes.push("overloaded");
  const { access } = route;
  if (access !== "public" && access !== "login")
    codes.push("unauthorized", "unavailable", "too_late");
  if (typeof access !== "string" || access === "credential") codes.push("rate_limited");
  if (typeof access !== "string" || access === "login") codes.push("forbidden");
  return codes;
}

function operation(route: ApiRoute, { requiresCredential }: ProductInfo, dialect: Errors): Json {
  const { access, body, query } = route;
  return {
    operationId: route.operation,
    tags: [route.tag],
    summary: route.summary,
    security: security(route, requiresCredential),
    ...(typeof access === "string" ? {} : { "x-permissions": access }),
    ...parametersOf(query, route),
    ...(body === undefined
      ? {}
      : {
          requestBody: {
            required: true,
            content: { [route.bodyType ?? "application/json"]: { schema: body } },
          },
        }),
    responses: responses(route, dialect),
  };
}

/** Returns the accepted credentials. An empty object means that the call needs no credential. */
function security({ access, alsoAccepts = [] }: ApiRoute, required: boolean): readonly Json[] {
  if (access === "public" || access === "login") return [];
  if (access === "bearer") return [BEARER];
  const anonymous = required ? [] : [{}];
  return [...anonymous, BEARER, STATIC_TOKEN, ...alsoAccepts.map((name) => ({ [name]: [] }))];
}

function parametersOf(query: Type.TObject | undefined, route: ApiRoute): Json {
  const inPath = Object.entries(route.params ?? {}).map(([name, description]) => ({
    ...{ name, in: "path", required: true, description },
    schema: { type: "string" },
  }));
  const all = [...inPath, ...(query === undefined ? [] : parameters(query, route))];
  return all.length === 0 ? {} : { parameters: all };
}

function parameters(query: Type.TObject, route: ApiRoute): readonly Json[] {
  const required: readonly string[] = query.required ?? [];
  return Object.entries(query.properties).map(([name, schema]) => ({
    name,
    in: isInPath(name, route) ? "path" : "query",
    required: required.includes(name),
    description: "description" in schema ? schema.description : undefined,
    schema,
  }));
}

function responses(route: ApiRoute, dialect: Errors): Json {
  const { success } = route;
  const replies: Record<string, Json> = { [success.status ?? 200]: successReply(success) };
  if (success.nothing !== undefined) replies[204] = { description: success.nothing };
  if (success.redirect !== undefined) replies[303] = { description: success.redirect };
  for (const [status, description] of Object.entries(route.replies ?? {}))
    replies[status] = { description };
  for (const [status, codes] of documentedErrors(route, dialect))
    replies[status] = {
      description: [...codes].join(", "),
      content: ERROR_CONTENT,
      ...headersOf(status),
    };
  return replies;
}

function successReply({ isEmpty, description, body, ...success }: Success): Json {
  if (isEmpty) return { description };
  const { contentType: type = "application/json", eventStream: events } = success;
  return { description, content: { [type]: { schema: body ?? {} }, ...eventStream(events) } };
}

function eventStream(description: string | undefined): Json {
  if (description === undefined) return {};
  return { "text/event-stream": { schema: { type: "string", description } } };
}

function headersOf(status: number): Json {
  if (status === 401) return { headers: header("WWW-Authenticate", "string") };
  return status === 429 || status === 503 ? { headers: header("Retry-After", "integer") } : {};
}

function header(name: string, type: string): Json {
  return { [name]: { schema: { type } } };
}
