#include "streams.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

// A moment that comes once.
struct Moment {
    std::mutex lock;
    std::condition_variable changed;
    bool came = false;
    std::chrono::steady_clock::time_point at;

    void come() {
        std::lock_guard guard(lock);
        at = std::chrono::steady_clock::now();
        came = true;
        changed.notify_all();
    }
    void wait() {
        std::unique_lock guard(lock);
        changed.wait(guard, [&] { return came; });
    }
};

// What one stream did while it was captured: works, and moments of the graph that are waited for or come.
struct Step {
    enum { Does, Waits, Comes } kind;
    Work work;
    size_t moment;
};
struct Recorded {
    std::vector<std::vector<Step>> lanes;
    size_t moments = 0;
};
struct Graph {
    std::shared_ptr<const Recorded> recorded;
};

struct Capture {
    uint64_t id;
    Recorded recorded;
    std::vector<Stream*> streams; // of the lanes
};

struct Stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Work> works;
    uint64_t put = 0, done = 0;
    bool ends = false;
    int device;
    Capture* capture = nullptr;
    size_t lane = 0;
};

struct Event {
    std::shared_ptr<Moment> moment; // null: never recorded
    uint64_t capture = 0;           // recorded while that was captured
    size_t number = 0;              // of the moment in its graph
};

namespace {

// Captures and which streams there are, and those that were ended and still work. Never destroyed: threads use them until the
// process ends.
auto& all = *new std::mutex;
auto& streams = *new std::set<Stream*>;
auto& ending = *new std::set<Stream*>;
uint64_t captures = 0;

void serve(Stream* stream) {
    for (;;) {
        Work work;
        {
            std::unique_lock guard(stream->lock);
            stream->changed.wait(guard, [&] { return stream->ends || !stream->works.empty(); });
            if (stream->works.empty()) break;
            work = std::move(stream->works.front());
            stream->works.pop_front();
        }
        work();
        std::lock_guard guard(stream->lock);
        stream->done++;
        stream->changed.notify_all();
    }
    // The stream itself stays, so that nothing else has its address.
    std::lock_guard guard(all);
    ending.erase(stream);
}

void put_now(Stream* stream, Work work) {
    std::lock_guard guard(stream->lock);
    stream->works.push_back(std::move(work));
    stream->put++;
    stream->changed.notify_all();
}

void note(Stream* stream, Step step) { stream->capture->recorded.lanes[stream->lane].push_back(std::move(step)); }

void join(Stream* stream, Capture* capture) {
    stream->capture = capture;
    stream->lane = capture->streams.size();
    capture->streams.push_back(stream);
    capture->recorded.lanes.emplace_back();
}

void run_lane(const Recorded& recorded, size_t lane, std::vector<Moment>& moments) {
    for (const Step& step : recorded.lanes[lane]) {
        if (step.kind == Step::Does) step.work();
        else if (step.kind == Step::Waits) moments[step.moment].wait();
        else moments[step.moment].come();
    }
}

} // namespace

Stream* make_stream(int device) {
    auto stream = new Stream;
    stream->device = device;
    std::lock_guard guard(all);
    streams.insert(stream);
    std::thread(serve, stream).detach();
    return stream;
}

void end_stream(Stream* stream) {
    std::lock_guard guard(all);
    streams.erase(stream);
    ending.insert(stream);
    std::lock_guard own(stream->lock);
    stream->ends = true;
    stream->changed.notify_all();
}

bool is_stream(Stream* stream) {
    std::lock_guard guard(all);
    return streams.count(stream) != 0;
}

Status put(Stream* stream, Work work) {
    std::lock_guard guard(all);
    if (stream->capture) note(stream, {Step::Does, std::move(work), 0});
    else put_now(stream, std::move(work));
    return SUCCESS;
}

Status wait_for(Stream* stream) {
    {
        std::lock_guard guard(all);
        if (stream->capture) return CAPTURE_UNSUPPORTED;
    }
    std::unique_lock guard(stream->lock);
    const uint64_t until = stream->put;
    stream->changed.wait(guard, [&] { return stream->done >= until; });
    return SUCCESS;
}

Status wait_for_streams_of(int device) {
    std::vector<std::pair<Stream*, uint64_t>> waits;
    {
        std::lock_guard guard(all);
        for (const auto& set : {streams, ending})
            for (Stream* stream : set) {
                if (stream->device != device) continue;
                if (stream->capture) return CAPTURE_UNSUPPORTED;
                std::lock_guard own(stream->lock);
                waits.emplace_back(stream, stream->put);
            }
    }
    for (auto [stream, until] : waits) {
        std::unique_lock guard(stream->lock);
        stream->changed.wait(guard, [&, until = until, stream = stream] { return stream->done >= until; });
    }
    return SUCCESS;
}

Event* make_event() { return new Event; }
void end_event(Event* event) { delete event; }

Status record(Event* event, Stream* stream) {
    std::lock_guard guard(all);
    if (stream->capture) {
        event->capture = stream->capture->id;
        event->number = stream->capture->recorded.moments++;
        note(stream, {Step::Comes, {}, event->number});
        return SUCCESS;
    }
    event->capture = 0;
    auto moment = event->moment = std::make_shared<Moment>();
    put_now(stream, [moment] { moment->come(); });
    return SUCCESS;
}

Status wait_for(Stream* stream, Event* event) {
    std::lock_guard guard(all);
    if (event->capture != 0) {
        Capture* capture = stream->capture;
        if (!capture) {
            for (Stream* other : streams)
                if (other->capture && other->capture->id == event->capture) capture = other->capture;
            if (!capture) return CAPTURED_EVENT;
            join(stream, capture);
        }
        if (capture->id != event->capture) return CAPTURE_ISOLATION;
        note(stream, {Step::Waits, {}, event->number});
        return SUCCESS;
    }
    if (stream->capture) return event->moment ? CAPTURE_ISOLATION : SUCCESS;
    if (auto moment = event->moment) put_now(stream, [moment] { moment->wait(); });
    return SUCCESS;
}

Status wait_for(Event* event) {
    std::shared_ptr<Moment> moment;
    {
        std::lock_guard guard(all);
        if (event->capture != 0) return CAPTURED_EVENT;
        moment = event->moment;
    }
    if (moment) moment->wait();
    return SUCCESS;
}

float milliseconds(const Event* start, const Event* end) {
    return std::chrono::duration<float, std::milli>(end->moment->at - start->moment->at).count();
}

Status begin_capture(Stream* stream) {
    std::lock_guard guard(all);
    if (stream->capture) return CAPTURE_UNSUPPORTED;
    auto capture = new Capture;
    capture->id = ++captures;
    join(stream, capture);
    return SUCCESS;
}

Status end_capture(Stream* stream, Graph*& graph) {
    std::lock_guard guard(all);
    Capture* capture = stream->capture;
    if (!capture || stream->lane != 0) return CAPTURE_UNMATCHED;
    // Each stream that came in must have been waited for again: its last step is a moment for which somebody waits.
    const auto& lanes = capture->recorded.lanes;
    bool joined = true;
    for (size_t lane = 1; lane < lanes.size(); lane++) {
        bool awaited = false;
        if (lanes[lane].back().kind == Step::Comes)
            for (const auto& other : lanes)
                for (const Step& step : other) awaited |= step.kind == Step::Waits && step.moment == lanes[lane].back().moment;
        joined &= awaited;
    }
    for (Stream* member : capture->streams) member->capture = nullptr;
    if (joined) graph = new Graph{std::make_shared<const Recorded>(std::move(capture->recorded))};
    delete capture;
    return joined ? SUCCESS : CAPTURE_UNJOINED;
}

uint64_t capture_of(Stream* stream) {
    std::lock_guard guard(all);
    return stream->capture ? stream->capture->id : 0;
}

Graph* copy_of(const Graph* graph) { return new Graph(*graph); }
void end_graph(Graph* graph) { delete graph; }

Status launch(const Graph* graph, Stream* stream) {
    std::lock_guard guard(all);
    if (stream->capture) return NOT_SUPPORTED;
    put_now(stream, [recorded = graph->recorded] {
        std::vector<Moment> moments(recorded->moments);
        std::vector<std::thread> others;
        for (size_t lane = 1; lane < recorded->lanes.size(); lane++)
            others.emplace_back([&, lane] { run_lane(*recorded, lane, moments); });
        run_lane(*recorded, 0, moments);
        for (auto& other : others) other.join();
    });
    return SUCCESS;
}
