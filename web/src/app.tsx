/** The frame around the views: the head, where to go, how the connection is, what is alarming. */

import { useEffect, useRef, useState } from "preact/hooks";
import { keepToken, token } from "./api/client";
import { moment, plural } from "./lib/format";
import { route, type Route } from "./lib/route";
import { clock, connection, enter, leave, me, overview, stream } from "./state/live";
import { ClusterView } from "./views/cluster";
import { JobView } from "./views/job";
import { JobsView } from "./views/jobs";
import { Login } from "./views/login";
import { PoliciesView } from "./views/policies";
import { SubmitView } from "./views/submit";
import { Empty } from "./parts/small";

export function App() {
  const [said, setSaid] = useState<string | null>(null);
  const secret = token.value;
  const known = me.value !== null;
  useEffect(() => {
    if (secret === null) {
      if (me.peek() !== null) setSaid("The token is no longer valid: it has expired or was revoked. Enter another one.");
      leave();
    } else if (me.peek() === null) begin(setSaid);
  }, [secret]);
  if (secret === null) return <Login said={said} key={said} />;
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <Head />
      <Notices />
      <main id="main" tabIndex={-1}>
        {known || said === null ? <View /> : <Empty title="The server cannot be reached">{said}</Empty>}
      </main>
    </>
  );
}

/** The first contact. A refused token leads to the question for another one, a missing server to the stream's retries. */
function begin(say: (text: string | null) => void): void {
  enter().then(
    () => say(null),
    (error: Error) => {
      if (token.value === null) say(error.message);
      else {
        void stream.run();
        setTimeout(() => token.value !== null && me.value === null && begin(say), 2_000);
      }
    },
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")!.focus();
}

const PLACES = [
  ["cluster", "#/", "Cluster"],
  ["jobs", "#/jobs", "Jobs"],
  ["policies", "#/policies", "Policies"],
] as const;

function Head() {
  const view = route.value.view;
  const head = overview.value;
  return (
    <header class="head">
      <a class="brand" href="#/" aria-label="stretto, to the cluster">
        <img src="/icon.svg" alt="" width={24} height={24} /> <span>stretto</span>
      </a>
      <nav aria-label="views">
        {PLACES.map(([name, to, label]) => (
          <a key={name} href={to} aria-current={view === name || (name === "jobs" && view === "job") ? "page" : undefined}>
            {label}
          </a>
        ))}
      </nav>
      <span class="grow" />
      {head && (
        <span class="used" title={`policy ${head.policy}, cluster ${head.cluster}, stretto ${head.version}`}>
          {head.used} of {plural(head.slots, "slot")}
        </span>
      )}
      <Link />
      <a class="button primary" href="#/submit" aria-current={view === "submit" ? "page" : undefined}>
        Submit<span class="wide">&nbsp;a job</span>
      </a>
      <button type="button" class="quiet" onClick={() => keepToken(null)} title={me.value ? `${me.value.name} (${me.value.scope})` : undefined}>
        Leave
      </button>
    </header>
  );
}

/** How the connection is, in a word. */
function Link() {
  const state = connection.value.state;
  const words = { live: "live", connecting: "connecting", lost: "lost" }[state];
  return (
    <span class={`link link-${state}`} role="status">
      {words}
    </span>
  );
}

function Notices() {
  const alarms = overview.value?.alarms ?? [];
  return (
    <div class="notices">
      <Lost />
      {alarms.map((alarm) => (
        <p class="notice is-alarm" role="alert" key={alarm.name}>
          <b>Alarm</b> {alarm.text}
          {alarm.count > 1 && <span class="muted"> ({alarm.count} times)</span>}
        </p>
      ))}
    </div>
  );
}

const GLAD_MS = 4_000;

function Lost() {
  const now = connection.value;
  const was = useRef(now.state);
  const [back, setBack] = useState(false);
  useEffect(() => {
    const regained = was.current === "lost" && now.state === "live";
    was.current = now.state;
    setBack(regained);
    if (!regained) return;
    const timer = setTimeout(() => setBack(false), GLAD_MS);
    return () => clearTimeout(timer);
  }, [now.state]);
  if (now.state === "lost") {
    const wait = Math.max(0, Math.ceil((now.retryAt - Date.now()) / 1000));
    void clock.value;
    return (
      <p class="notice is-lost" role="alert" data-testid="lost">
        <b>Connection lost, retrying.</b> <span>{now.why}. Jobs go on training meanwhile; what you see is from {moment(now.since / 1000, now.since / 1000)}.</span>
        <button type="button" onClick={() => stream.retryNow()}>
          Retry now{wait > 0 ? ` (${wait} s)` : ""}
        </button>
      </p>
    );
  }
  return back ? (
    <p class="notice is-back" role="status" data-testid="back">
      Connected again, everything is up to date.
    </p>
  ) : null;
}

function View() {
  const where: Route = route.value;
  useEffect(() => {
    scrollTo(0, 0);
    if (where.view !== "job") stream.watch(null);
  }, [where]);
  switch (where.view) {
    case "cluster":
      return <ClusterView />;
    case "jobs":
      return <JobsView />;
    case "job":
      return <JobView id={where.id} key={where.id} />;
    case "submit":
      return <SubmitView />;
    case "policies":
      return <PoliciesView />;
    case "unknown":
      return (
        <Empty title="There is nothing at this address">
          <p>
            <code>#{where.path}</code> is no view of this page. <a href="#/">To the cluster</a>
          </p>
        </Empty>
      );
  }
}
